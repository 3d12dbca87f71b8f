// Package godecl finds the functions of Go files by name.
package godecl

import (
	"go/ast"
	"go/types"
	"strings"
)

// Func finds a function, or a method by the type of its receiver and its name:
// "Loop.next". It returns nil if there is none.
func Func(file *ast.File, name string) *ast.FuncDecl {
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && receiver(f)+f.Name.Name == name {
			return f
		}
	}
	return nil
}

// receiver returns the receiver's type and a dot, or nothing for a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv.NumFields() == 0 { // also in a file with a syntax error
		return ""
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(types.ExprString(f.Recv.List[0].Type), "*"), "[") // a generic type
	return name + "."
}
