package main

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// TestFormattingAConfig checks what the comment of credentials says.
func TestFormattingAConfig(t *testing.T) {
	config := &rest.Config{Username: "anna", Password: "secret-password", BearerToken: "secret-token"}
	config.KeyData = []byte("secret-key")
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(verb, config); strings.Contains(text, "secret-") || !strings.Contains(text, "anna") {
			t.Errorf("*rest.Config with %s: %s", verb, text)
		}
		// The struct is another matter. Only its TLS part hides what it holds.
		text := fmt.Sprintf(verb, *config)
		if !strings.Contains(text, "secret-password") || !strings.Contains(text, "secret-token") {
			t.Errorf("rest.Config with %s hides its secrets now; say so in main.go:\n%s", verb, text)
		}
	}
}
