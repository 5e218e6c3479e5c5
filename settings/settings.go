// Package settings has what the settings of all packages share: a value for none,
// and the error for those that cannot be meant, so that a program finds every
// fault in one way:
//
//	if fault, ok := errors.AsType[*settings.Error](err); ok {
//		log.Printf("%s: set %s: %s", fault.Package, fault.Field, fault.Fix)
//	}
package settings

import "fmt"

// None says that there is to be none of something whose zero value means a
// default: no time to drain in, no limit, no retry. Each setting that takes it
// says what that means.
const None = -1

// Error is one fault of the settings of a package. Functions that find several join
// them.
type Error struct {
	Package string // such as "consumer"
	Field   string // such as "Config.Lease"
	Problem string // what is wrong with it
	Fix     string // what to write instead
}

// Error says what is wrong and how to mend it.
func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s: %s: %s", e.Package, e.Field, e.Problem, e.Fix)
}
