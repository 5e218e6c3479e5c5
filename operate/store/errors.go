package store

import (
	"errors"

	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

// What can be wrong with a store, for errors.Is. The error says more.
var (
	// ErrNewer reports a store that a newer version of the program has brought
	// to a schema which this one does not know. Nothing was changed.
	ErrNewer = sqldb.ErrNewer

	// ErrLocked reports that another process kept the store locked for longer
	// than a call waits, 10 seconds. Nothing was changed; call again.
	ErrLocked = sqldb.ErrLocked

	// ErrFull reports a full disk. Nothing was changed.
	ErrFull = sqldb.ErrFull

	// ErrReadOnly reports a store that this process may not write.
	ErrReadOnly = sqldb.ErrReadOnly

	// ErrDamaged reports a file that is no store, or no longer.
	ErrDamaged = sqldb.ErrDamaged

	// ErrNotFound reports that there is no letter or job of this number.
	ErrNotFound = errors.New("there is none of this number")
)
