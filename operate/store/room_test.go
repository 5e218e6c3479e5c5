package store_test

import (
	"strings"
	"testing"
)

func TestProbe(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		s := open(t, url)
		for _, bytes := range []int64{0, 1, 3 << 20} {
			if err := s.Probe(t.Context(), bytes); err != nil {
				t.Errorf("Probe of %d bytes: %v", bytes, err)
			}
		}
		free, size, err := s.Disk()
		if onPostgres := strings.HasPrefix(url, "postgres"); err != nil || onPostgres != (size == 0) || free > size {
			t.Errorf("Disk = %d of %d, %v", free, size, err)
		}
	})
}
