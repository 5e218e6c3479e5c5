package bodies_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/redrive-go/redrive/operate/service/bodies"
	"github.com/redrive-go/redrive/operate/service/bodies/bodiestest"
)

// must fails the test at once if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// errOf returns the error of a call alone.
func errOf[T any](_ T, err error) error { return err }

func TestDir(t *testing.T) {
	bodiestest.Run(t, func(t *testing.T) bodies.Store { return bodies.Dir(filepath.Join(t.TempDir(), "a", "b")) })
}

// filesIn are the files below a directory.
func filesIn(t *testing.T, dir string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			files = append(files, file)
		}
		return err
	})
	must(t, err)
	return files
}

func nobody(context.Context, []string) ([]string, error) { return nil, nil }

// TestUnfinished leaves nothing of a body whose sender ends early, and sweeps what a
// crash has left, once it is old.
func TestUnfinished(t *testing.T) {
	dir := t.TempDir()
	d := bodies.Dir(dir)
	cut := errors.New("cut")
	if _, err := d.Put(t.Context(), "shop", io.MultiReader(strings.NewReader("a"), iotest.ErrReader(cut))); !errors.Is(err, cut) {
		t.Errorf("error %v, want that of the sender", err)
	}
	if files := filesIn(t, dir); len(files) > 0 {
		t.Errorf("there is %q", files)
	}
	left := filepath.Join(dir, "shop", "tmp-123")
	must(t, os.WriteFile(left, []byte("half a bo"), 0o600))
	for _, step := range []struct {
		before time.Time
		want   int
	}{{time.Now().Add(-time.Hour), 0}, {time.Now().Add(time.Hour), 1}} {
		if n, err := d.Sweep(t.Context(), step.before, nobody); n != step.want || err != nil {
			t.Errorf("%d swept, error %v, want %d", n, err, step.want)
		}
	}
}

// TestForeignFiles leaves alone what is no body.
func TestForeignFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"service.db", "shop/notes.txt", "shop/ab/notes.txt", "shop/ab/c/tmp-1"} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	if n, err := bodies.Dir(dir).Sweep(t.Context(), time.Now().Add(time.Hour), nobody); n > 0 || err != nil || len(filesIn(t, dir)) != 4 {
		t.Errorf("%d swept, error %v, %q left", n, err, filesIn(t, dir))
	}
}

// TestLinksHaveALimit keeps a body whose file may have two links more often than that.
// What is full ages, and is swept, while the body is kept.
func TestLinksHaveALimit(t *testing.T) {
	dir := t.TempDir()
	d := bodies.Dir(dir)
	ref, err := d.Put(t.Context(), "shop", strings.NewReader("a"))
	must(t, err)
	links := map[string]int{} // by the file that they are of
	of := map[string]string{}
	link := func(file, name string) error {
		first := file
		if of[file] != "" {
			first = of[file]
		}
		if links[first] >= 2 {
			return &os.LinkError{Op: "link", Old: file, New: name, Err: syscall.EMLINK}
		}
		links[first]++
		of[name] = first
		return os.Link(file, name)
	}
	for range 9 {
		old := time.Now().Add(-48 * time.Hour)
		for _, file := range filesIn(t, dir) {
			must(t, os.Chtimes(file, old, old))
		}
		must(t, d.KeepBy(t.Context(), ref, link))
	}
	if len(links) != 3 {
		t.Errorf("%d files have links, want 3 of 10 names: %v", len(links), links)
	}
	if n, err := d.Sweep(t.Context(), time.Now().Add(-24*time.Hour), nobody); n != 6 || err != nil {
		t.Errorf("%d swept, error %v, want 6: all names but of the latest copy, and of what it was made of", n, err)
	}
	body, size, err := d.Open(t.Context(), ref)
	must(t, err)
	if text, err := io.ReadAll(body); string(text) != "a" || size != 1 || errors.Join(err, body.Close()) != nil {
		t.Errorf("%q of %d bytes, error %v", text, size, err)
	}
}
