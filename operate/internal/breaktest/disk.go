package breaktest

import (
	"os"
	"path/filepath"
)

// Fill leaves nothing of a small disk, until free is called.
func Fill(dir string) (free func() error) {
	ballast := filepath.Join(dir, "ballast")
	f, err := os.Create(ballast)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	_ = f.Close()
	return func() error { return os.Remove(ballast) }
}
