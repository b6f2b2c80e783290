package server

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"golang.org/x/sys/unix"
)

// Files of shared tables in memory (docs/protocol.md §10). The garbage collector does not know the memory of a map, but the object that
// stands for it: a map ends once nothing refers to its object. Whatever reads the bytes must hold the object meanwhile.

// Most bytes of a segment or an index.
const mostFileBytes = 1 << 29

// mapping is a file in memory.
type mapping struct{ bytes []byte }

// fileNumber says which file it is. No other file has its number while it is mapped.
type fileNumber struct {
	device, inode uint64
	bytes         int64
}

func numberOf(descriptor int) (fileNumber, error) {
	var found unix.Stat_t
	if err := unix.Fstat(descriptor, &found); err != nil {
		return fileNumber{}, err
	}
	return fileNumber{uint64(found.Dev), found.Ino, found.Size}, nil
}

// mapFile maps a file, `what` it is for errors.
func mapFile(descriptor int, what string) (*mapping, error) {
	var found unix.Stat_t
	if err := unix.Fstat(descriptor, &found); err != nil {
		return nil, unmapped(what, err)
	}
	if found.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, malformed(what, "is not a regular file")
	}
	if found.Size > mostFileBytes {
		return nil, fmt.Errorf("a segment of a shared table has at most %d bytes: It has at least %d bytes.", mostFileBytes, found.Size)
	}
	mapped := &mapping{}
	if found.Size == 0 {
		return mapped, nil
	}
	// Private, because before Linux 6.7 there are no shared maps of files that are sealed. Both lie in the memory of the file.
	bytes, err := unix.Mmap(descriptor, 0, int(found.Size), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, unmapped(what, err)
	}
	mapped.bytes = bytes
	runtime.AddCleanup(mapped, unmap, bytes)
	return mapped, nil
}

func unmap(bytes []byte) {
	if err := unix.Munmap(bytes); err != nil {
		fmt.Fprintln(os.Stderr, "transship: a shared table stays in memory:", err)
	}
}

// unmapped is the error of a file that the system does not map.
func unmapped(what string, cause error) error {
	message := fmt.Sprintf("could not map the %s of a shared table: %v", what, cause)
	kind := "protocol_violation"
	if errors.Is(cause, unix.ENOMEM) || errors.Is(cause, unix.EMFILE) || errors.Is(cause, unix.ENFILE) {
		kind = "busy"
	}
	return &CallError{Kind: kind, Message: message}
}

// malformed is the error of bytes that are not what they must be; `fact` completes a sentence about them.
func malformed(what, fact string) error {
	return fmt.Errorf("invalid %s of a shared table: It %s.", what, fact)
}

// keeper is the allocator of buffers in mapped memory, which they hold as long as there are any.
type keeper struct{ held any }

// Allocate gives memory to buffers that grow, which those of arrays do not.
func (keeper) Allocate(size int) []byte { return memory.DefaultAllocator.Allocate(size) }

// Reallocate does as well.
func (keeper) Reallocate(size int, bytes []byte) []byte {
	return append(make([]byte, 0, size), bytes[:min(size, len(bytes))]...)[:size]
}

// Free does nothing: the map ends with the last object that refers to it.
func (keeper) Free([]byte) {}
