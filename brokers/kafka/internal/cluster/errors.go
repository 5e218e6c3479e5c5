package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

var (
	// ErrCorrupt reports an answer that cannot be read.
	ErrCorrupt = errors.New("the broker sends records that cannot be read")

	// ErrNoSuchCall reports a broker that is too old for a request.
	ErrNoSuchCall = errors.New("the broker does not know this request")

	// ErrGone is kafka.UnknownTopicOrPartition after the cluster was asked again.
	ErrGone = fmt.Errorf("%w", kafka.UnknownTopicOrPartition)
)

// CodeError returns the error of a code of the protocol, nil for 0.
func CodeError(code int16) error {
	if code == 0 {
		return nil
	}
	return kafka.Error(code)
}

// plainly gives the library's own errors about topics the code of the protocol.
func plainly(err error) error {
	switch {
	case errors.Is(err, protocol.ErrNoTopic), errors.Is(err, protocol.ErrNoPartition):
		return kafka.UnknownTopicOrPartition
	case errors.Is(err, protocol.ErrNoLeader):
		return kafka.LeaderNotAvailable
	}
	return err
}

// IsConnectionLost reports whether err says that a connection cannot be used,
// or was ended by the other side.
func IsConnectionLost(err error) bool {
	if err == nil || IsEnded(err) {
		return false
	}
	_, op := errors.AsType[*net.OpError](err)
	return op || isOneOf(err, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, io.ErrClosedPipe, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE)
}

// IsEnded reports whether a call came to its end before there was an answer.
func IsEnded(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return isOneOf(err, context.Canceled, context.DeadlineExceeded, os.ErrDeadlineExceeded) || ok && op.Timeout()
}

// IsLayoutOld reports whether err may be due to an old layout of the cluster:
// a topic that is new or was deleted, a leader that moved.
func IsLayoutOld(err error) bool {
	return isOneOf(err,
		kafka.UnknownTopicOrPartition, kafka.LeaderNotAvailable, kafka.NotLeaderForPartition, kafka.BrokerNotAvailable,
		kafka.ReplicaNotAvailable, kafka.KafkaStorageError, kafka.FencedLeaderEpoch, kafka.UnknownLeaderEpoch,
		kafka.Unknown) // also what the library makes of a part of a call that failed
}

// IsUnknownTopic reports whether err says that there is no such topic or partition.
func IsUnknownTopic(err error) bool { return errors.Is(err, kafka.UnknownTopicOrPartition) }

func isOneOf(err error, kinds ...error) bool {
	for _, kind := range kinds {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}
