package harness

import "errors"

// ErrNoPrivate is the error of Private where this user or system can start none.
var ErrNoPrivate = errors.New("only root on Linux can start a RabbitMQ for one test (chroot and namespaces)")
