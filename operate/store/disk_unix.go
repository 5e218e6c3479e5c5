//go:build linux || darwin || freebsd

package store

import "golang.org/x/sys/unix"

func diskOf(dir string) (free, size int64, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, 0, err
	}
	block := int64(fs.Bsize)
	return int64(fs.Bavail) * block, int64(fs.Blocks) * block, nil
}
