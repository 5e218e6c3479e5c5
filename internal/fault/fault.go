// Package fault is the error for settings that cannot be meant. It is at the
// bottom of the module, so that all packages report with one type.
package fault

import "fmt"

// Error is one fault of the settings of a package.
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

// Of returns the fault that a field has this value; fix is a format for limit.
func Of(pkg, field string, value any, fix string, limit any) error {
	return &Error{pkg, field, fmt.Sprintf("is %v", value), fmt.Sprintf(fix, limit)}
}
