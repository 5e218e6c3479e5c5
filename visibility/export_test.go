package visibility

// ErrExpired is the cause of a lease that ran out.
var ErrExpired = errExpired
