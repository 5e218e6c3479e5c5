package store

import (
	"context"
	"fmt"
	"path/filepath"
)

// Probe writes so many bytes, at least one, and takes them back. An error says why
// the store cannot take letters now.
func (s *Store) Probe(ctx context.Context, bytes int64) error {
	return s.write(ctx, func(tx conn) error {
		for left := max(bytes, 1); left > 0; left -= partBytes {
			data := make([]byte, min(left, partBytes))
			if _, err := tx.Exec(ctx, "insert into room (data) values (?)", data); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, "delete from room")
		return err
	})
}

// Disk returns the size of the disk that the file of the store is on, and how much
// of it this process can still write, in bytes. Both are 0 where nobody knows: on
// Postgres, and on systems other than Linux, macOS, FreeBSD and Windows.
func (s *Store) Disk() (free, size int64, err error) {
	if s.db.Postgres() {
		return 0, 0, nil
	}
	if free, size, err = diskOf(filepath.Dir(s.db.Name())); err != nil {
		return 0, 0, fmt.Errorf("store %s: how full the disk is: %w", s.db.Name(), err)
	}
	return free, size, nil
}
