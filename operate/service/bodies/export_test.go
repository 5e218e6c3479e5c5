package bodies

import "context"

// KeepBy is Keep with another way to make links.
func (d Dir) KeepBy(ctx context.Context, ref string, link func(file, name string) error) error {
	return d.keep(ctx, ref, link)
}
