//go:build !linux

package breaktest

import "testing"

// SmallDisk is "" on this system, where none is mounted.
func SmallDisk(*testing.T, string) string { return "" }
