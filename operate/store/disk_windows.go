package store

import "golang.org/x/sys/windows"

func diskOf(dir string) (free, size int64, err error) {
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return 0, 0, err
	}
	var available, total, unused uint64
	if err := windows.GetDiskFreeSpaceEx(name, &available, &total, &unused); err != nil {
		return 0, 0, err
	}
	return int64(available), int64(total), nil
}
