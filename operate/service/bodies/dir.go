package bodies

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/redrive-go/redrive/operate/service/bodies/internal/sweep"
)

// Dir keeps bodies as files of a directory, which processes on several machines may
// share. A body is in TENANT/aa/SUM.TIME-RANDOM, with aa the first two letters of its
// sum. Each Put and Keep makes a file of its own, so that a sweep which takes an older
// one away takes nothing from them. Whoever shares a directory shares the tasks, too:
// Sweep deletes what its caller does not need.
type Dir string

// unfinished begins the names of files that are still written, or were when their
// writer died.
const unfinished = "tmp-"

// Put implements [Store].
func (d Dir) Put(ctx context.Context, tenant string, body io.Reader) (ref string, err error) {
	home := filepath.Join(string(d), tenant)
	if err := makeDir(home); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(home, unfinished+"*")
	if err != nil {
		return "", fmt.Errorf("a body cannot be kept: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("a body cannot be kept: %w", errors.Join(err, os.Remove(f.Name())))
		}
	}()
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(f, sum), body)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", err
	}
	ref = Ref(tenant, sum)
	name, err := d.next(ref)
	if err != nil {
		return "", err
	}
	if err = os.Rename(f.Name(), name); err != nil {
		return "", err
	}
	return ref, syncDir(filepath.Dir(name))
}

// next is the name of another file for a body, in a folder that is there. It is the
// last in their order.
func (d Dir) next(ref string) (string, error) {
	folder, sum, err := d.place(ref)
	if err != nil {
		return "", err
	}
	return filepath.Join(folder, fmt.Sprintf("%s.%016x-%s", sum, time.Now().UnixNano(), rand.Text())), makeDir(folder)
}

// place is the folder that the files of a body are in, and what their names begin
// with.
func (d Dir) place(ref string) (folder, sum string, err error) {
	tenant, sum, err := Split(ref)
	if err != nil {
		return "", "", err
	}
	return filepath.Join(string(d), tenant, sum[:2]), sum, nil
}

// files are those of a body.
func (d Dir) files(ref string) ([]string, error) {
	folder, sum, err := d.place(ref)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), sum+".") {
			names = append(names, filepath.Join(folder, e.Name()))
		}
	}
	return names, nil
}

// Keep implements [Store].
func (d Dir) Keep(ctx context.Context, ref string) error { return d.keep(ctx, ref, os.Link) }

// keep makes a link to the latest file of a body, or a copy, where that has as many as
// the file system allows, or it has none. A copy then is the latest, and what it was
// made of ages.
func (d Dir) keep(ctx context.Context, ref string, link func(file, name string) error) error {
	return d.latest(ref, func(file string) error {
		info, err := os.Stat(file)
		if err == nil && info.Size() > MaxSize {
			err = ErrTooLarge
		}
		if err != nil {
			return err
		}
		name, err := d.next(ref)
		if err != nil {
			return err
		}
		now := time.Now()
		if err := os.Chtimes(file, now, now); err != nil { // before a sweep can see the new name
			return err
		}
		if err := link(file, name); err != nil {
			return d.copy(ctx, ref, file)
		}
		return syncDir(filepath.Dir(name))
	})
}

// copy puts a body that is in a file once more.
func (d Dir) copy(ctx context.Context, ref, file string) error {
	body, _, err := open(file)
	if err != nil {
		return err
	}
	defer body.Close()
	tenant, _, _ := Split(ref) // it is the name of a file
	again, err := d.Put(ctx, tenant, body)
	if err == nil && again != ref {
		err = fmt.Errorf("%s is damaged: its body is %s", file, again)
	}
	return err
}

// Open implements [Store].
func (d Dir) Open(_ context.Context, ref string) (body io.ReadCloser, size int64, err error) {
	err = d.latest(ref, func(file string) (err error) {
		body, size, err = open(file)
		return err
	})
	return body, size, err
}

func open(file string) (body io.ReadCloser, size int64, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() > MaxSize {
		err = ErrTooLarge
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// latest does something with the latest file of a body: with another one, if a sweep
// was quicker, as long as there are any.
func (d Dir) latest(ref string, do func(file string) error) error {
	for {
		files, err := d.files(ref)
		if err != nil {
			return err
		}
		if len(files) == 0 {
			return fmt.Errorf("%w: %s", ErrNotFound, ref)
		}
		if err := do(files[len(files)-1]); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
}

// Sweep implements [Store].
func (d Dir) Sweep(ctx context.Context, before time.Time, named Named) (deleted int, err error) {
	old := sweep.Old{Named: named, Delete: removeFiles}
	var unread []error // and the rest is swept
	err = filepath.WalkDir(string(d), func(file string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // another sweep was here, or nothing was ever put
			return nil
		case err != nil:
			unread = append(unread, err)
			return fs.SkipDir
		case e.IsDir():
			return ctx.Err()
		}
		ref, ok := d.refOf(file)
		if !ok {
			return nil
		}
		info, err := e.Info()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			unread = append(unread, err)
		}
		if err != nil || !info.ModTime().Before(before) {
			return nil
		}
		return old.Add(ctx, ref, file)
	})
	if err == nil {
		err = old.Flush(ctx)
	}
	if err = errors.Join(append(unread, err)...); err != nil {
		err = fmt.Errorf("bodies that no task names cannot be deleted: %w", err)
	}
	return old.Deleted, err
}

func removeFiles(_ context.Context, files []string) error {
	for _, file := range files {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// refOf is the name of the body in a file: empty for one that was never finished.
// Files of others have none.
func (d Dir) refOf(file string) (ref string, ok bool) {
	path, err := filepath.Rel(string(d), file)
	if err != nil {
		return "", false
	}
	parts := strings.Split(filepath.ToSlash(path), "/")
	if len(parts) == 2 && strings.HasPrefix(parts[1], unfinished) {
		return "", true
	}
	if len(parts) != 3 {
		return "", false
	}
	sum, _, _ := strings.Cut(parts[2], ".")
	ref = parts[0] + "/" + sum
	_, _, err = Split(ref)
	return ref, err == nil
}

// makeDir makes a directory, and those around it, so that a crash leaves them there.
func makeDir(name string) error {
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		return nil
	}
	around := filepath.Dir(name)
	if around != name {
		if err := makeDir(around); err != nil {
			return err
		}
	}
	if err := os.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("a directory for bodies cannot be made: %w", err)
	}
	return syncDir(around)
}

// syncDir makes durable which files a directory has.
func syncDir(name string) error {
	if runtime.GOOS == "windows" { // which has no such call
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
