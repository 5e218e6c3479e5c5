// Package sweep decides which old bodies are deleted.
package sweep

import (
	"context"
	"slices"
)

// batch is how many names are asked for at once.
const batch = 200

// Old collects what is old, and deletes what of it nobody needs: everything that has
// no name or one that no task names, and of the others all but one. Sweeps at the same
// time agree on that one, the last in the order of their names.
type Old struct {
	Named   func(ctx context.Context, refs []string) ([]string, error)
	Delete  func(ctx context.Context, files []string) error
	Deleted int

	byRef map[string][]string
}

// Add takes a file of the body of a name; of none, if it was never finished.
func (o *Old) Add(ctx context.Context, ref, file string) error {
	if o.byRef == nil {
		o.byRef = map[string][]string{}
	}
	o.byRef[ref] = append(o.byRef[ref], file)
	if len(o.byRef) < batch {
		return nil
	}
	return o.Flush(ctx)
}

// Flush deletes what was added and nobody needs.
func (o *Old) Flush(ctx context.Context) error {
	var refs, used, files []string
	for ref := range o.byRef {
		if ref != "" {
			refs = append(refs, ref)
		}
	}
	if len(refs) > 0 {
		var err error
		if used, err = o.Named(ctx, refs); err != nil {
			return err
		}
	}
	for ref, of := range o.byRef {
		if slices.Contains(used, ref) {
			slices.Sort(of)
			of = of[:len(of)-1]
		}
		files = append(files, of...)
	}
	clear(o.byRef)
	if len(files) == 0 {
		return nil
	}
	o.Deleted += len(files)
	return o.Delete(ctx, files)
}
