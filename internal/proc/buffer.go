package proc

import (
	"bytes"
	"fmt"
	"sync"
)

// MaxOutput is how many bytes a Buffer keeps: enough for any lesson, and a
// program that floods its output cannot take this process's memory with it.
const MaxOutput = 1 << 20

// A Buffer is a writer that keeps the first and the last half of MaxOutput
// bytes. It may be read while it is written to; a nil Buffer is empty.
type Buffer struct {
	mu      sync.Mutex
	head    bytes.Buffer
	tail    []byte
	dropped int
}

func (b *Buffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(data)
	if room := MaxOutput/2 - b.head.Len(); room > 0 {
		take := min(room, len(data))
		b.head.Write(data[:take])
		data = data[take:]
	}
	b.tail = append(b.tail, data...)
	if over := len(b.tail) - MaxOutput/2; over > 0 {
		b.dropped += over
		b.tail = append(b.tail[:0], b.tail[over:]...)
	}
	return n, nil
}

// Dropped is how many bytes were not kept.
func (b *Buffer) Dropped() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.dropped
}

// String returns what was kept, and says what was not.
func (b *Buffer) String() string {
	if b == nil {
		return ""
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dropped == 0 {
		return b.head.String() + string(b.tail)
	}
	return fmt.Sprintf("%s\n... %d bytes left out ...\n%s", b.head.String(), b.dropped, b.tail)
}
