//go:build !unix

package meter

import (
	"errors"
	"time"
)

// ProcessorTime fails where nobody tells.
func ProcessorTime() (time.Duration, error) { return 0, errors.ErrUnsupported }
