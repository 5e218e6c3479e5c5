package harness

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Use is a run's hold on brokers. Runs may share brokers: the last run that
// uses a broker stops it, if a run has started it.
//
// A broker that a run has started has a mark, a file in the cache, and each run
// that uses it holds a shared lock of that file. The kernel takes the lock away
// when a run ends, however it ends. Up and Down remove the mark, so that no run
// stops a broker that a user has started.
type Use struct {
	h    *Harness
	held []held
}

type held struct {
	broker Broker
	mark   *os.File // open, and locked
}

func (h *Harness) mark(b Broker) string { return filepath.Join(h.cache, b.Name+".run") }

// Use starts the brokers that do not run yet, and returns when all are ready.
// They stay up until Release, at least. After an error some brokers may run,
// and Release stops them.
func (h *Harness) Use(ctx context.Context, brokers []Broker) (*Use, error) {
	u := &Use{h: h}
	err := h.locked(func() error {
		for _, b := range brokers {
			if err := u.hold(ctx, b); err != nil {
				return fmt.Errorf("take %s into use: %w", b.Name, err)
			}
		}
		_, err := h.start(ctx, brokers)
		return err
	})
	return u, err
}

// hold locks the mark of a broker, and makes one first if the broker does not
// run. The lock of the harness is held, so no other run has this lock alone.
func (u *Use) hold(ctx context.Context, b Broker) error {
	if err := u.h.engine.thaw(ctx, b); err != nil {
		return err
	}
	flags := os.O_RDWR
	if u.h.engine.check(ctx, b) != nil {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(u.h.mark(b), flags, 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // Up has started it
	}
	if err == nil {
		err = lockShared(f)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	u.held = append(u.held, held{b, f})
	return nil
}

// Release stops the brokers that a run has started and no other run uses, and
// removes what they left.
func (u *Use) Release(ctx context.Context) error {
	return u.h.locked(func() error {
		var last []Broker
		for _, held := range u.held {
			held.mark.Close() // which releases the lock
			if u.h.isUnused(held.broker) {
				last = append(last, held.broker)
			}
		}
		u.held = nil
		if len(last) == 0 {
			return nil
		}
		return u.h.down(ctx, last)
	})
}

// isUnused reports whether a run has started the broker and no run uses it.
func (h *Harness) isUnused(b Broker) bool {
	f, err := os.OpenFile(h.mark(b), os.O_RDWR, 0)
	if err != nil {
		return false // Up has taken it over, or Down has stopped it
	}
	defer f.Close()
	return lockAlone(f) == nil
}

// unmark removes the marks of brokers, so that no run stops them.
func (h *Harness) unmark(brokers []Broker) error {
	for _, b := range brokers {
		if err := os.Remove(h.mark(b)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
