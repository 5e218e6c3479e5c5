package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"

	"github.com/redrive-go/redrive/brokers"
)

// errCorrupt reports records that cannot be read: neither they nor what lies
// behind them is handed out.
var errCorrupt = errors.New("the broker sends records that cannot be read")

// errGone is kafka.UnknownTopicOrPartition after the cluster was asked again.
var errGone = fmt.Errorf("%w", kafka.UnknownTopicOrPartition)

// rangeError reports an offset that the partition does not have: the records
// fell off the log, or the topic was made anew. Where the bounds are unknown
// they are -1.
type rangeError struct {
	partition   partition
	offset      int64
	first, last int64 // what there is: from first up to, not including, last
	anew        bool  // another log has the same offsets
}

// Error says what is there instead, and what that means.
func (e *rangeError) Error() string {
	if e.anew {
		return fmt.Sprintf("%s is another log than the one of which offset %d was reached: the topic was deleted and made anew; it is read from its first record, %d", e.partition, e.offset, e.first)
	}
	what := "the log is shorter than that: the topic was deleted and made anew, or records that were acknowledged got lost with a broker"
	if e.offset < e.first {
		what = "the records before were deleted (retention.ms, retention.bytes, or by hand)"
	}
	return fmt.Sprintf("%s has the offsets %d to %d, and %d was asked for: %s", e.partition, e.first, e.last-1, e.offset, what)
}

// Unwrap returns kafka.OffsetOutOfRange.
func (e *rangeError) Unwrap() error { return kafka.OffsetOutOfRange }

// explain turns err, which ended doing, into one that says what it is about and
// what to do. What an operator must cure is brokers.ErrMisconfigured, what an
// ended generation tries is brokers.ErrLeaseLost.
func explain(err error, doing string, args ...any) error {
	if err == nil {
		return nil
	}
	err = plainly(err)
	doing = fmt.Sprintf(doing, args...)
	if fix, kind := cure(err); kind != nil && !errors.Is(err, kind) {
		if fix != "" {
			return fmt.Errorf("%s: %w: %s: %w", doing, kind, fix, err)
		}
		return fmt.Errorf("%s: %w: %w", doing, kind, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
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

// cure says how to fix err, and of which kind it is.
func cure(err error) (fix string, kind error) {
	if isTLS(err) {
		return "check Options.TLS, and that the address is a TLS listener of the broker", brokers.ErrMisconfigured
	}
	code, ok := errors.AsType[kafka.Error](err)
	if !ok {
		return "", nil
	}
	switch code {
	case kafka.IllegalGeneration, kafka.UnknownMemberId, kafka.RebalanceInProgress, kafka.FencedInstanceID:
		return "", brokers.ErrLeaseLost
	case kafka.MessageSizeTooLarge, kafka.InvalidRecord, kafka.InvalidTimestamp, kafka.InvalidMessageSize:
		return "", brokers.ErrRefused
	}
	switch fix = fixOf(code); {
	case code == kafka.UnknownTopicOrPartition:
		kind = brokers.ErrNotFound
	case fix != "":
		kind = brokers.ErrMisconfigured
	}
	return fix, kind
}

// fixOf says what an operator can do, where nobody else can do anything.
func fixOf(code kafka.Error) string {
	switch code {
	case kafka.UnknownTopicOrPartition:
		return "create the topic, or correct its name; without the right to describe it, it looks missing too"
	case kafka.InvalidTopic:
		return "a name has 1 to 249 letters, digits, dots, underscores and hyphens"
	case kafka.TopicAuthorizationFailed:
		return "grant the user the rights on the topic: Read and Describe to consume, Write to retry and dead-letter, DescribeConfigs, and Create for delay topics"
	case kafka.GroupAuthorizationFailed:
		return "grant the user the right Read on the group"
	case kafka.ClusterAuthorizationFailed:
		return "grant the user the right on the cluster, such as Create, or create the topics beforehand"
	case kafka.SASLAuthenticationFailed, kafka.IllegalSASLState:
		return "check user and password, and the mechanism, in Options.SASL"
	case kafka.UnsupportedSASLMechanism:
		return "the broker offers no such mechanism: change the mechanism in Options.SASL, or sasl.enabled.mechanisms there"
	case kafka.InvalidReplicationFactor:
		return "the cluster has fewer brokers than replicas are asked for"
	case kafka.InvalidPartitionNumber, kafka.InvalidReplicaAssignment, kafka.InvalidConfiguration, kafka.PolicyViolation:
		return "the broker does not allow a topic like this"
	case kafka.OffsetMetadataTooLarge:
		return "offset.metadata.max.bytes is below the default of 4096: raise it"
	case kafka.InvalidGroupId, kafka.InvalidSessionTimeout, kafka.InconsistentGroupProtocol:
		return "other members of the group, or the broker's settings for groups, do not allow this one"
	case kafka.UnsupportedVersion, kafka.UnsupportedForMessageFormat:
		return "use Kafka 2.4 or newer"
	}
	return ""
}

// isTLS reports whether err is what one side has against the certificates or
// the TLS of the other.
func isTLS(err error) bool {
	_, ours := errors.AsType[*tls.CertificateVerificationError](err)
	_, none := errors.AsType[tls.RecordHeaderError](err)
	return ours || none || strings.Contains(err.Error(), "remote error: tls: ") ||
		strings.Contains(err.Error(), "broker appears to be expecting TLS")
}

// isConnectionLost reports whether err says that a connection cannot be used,
// or was ended by the other side.
func isConnectionLost(err error) bool {
	if err == nil || isEnded(err) {
		return false
	}
	_, op := errors.AsType[*net.OpError](err)
	return op || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// isEnded reports whether a call came to its end before there was an answer.
func isEnded(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || ok && op.Timeout()
}

// isLayoutOld reports whether err may be due to an old layout of the cluster:
// a topic that is new or was deleted, a leader that moved.
func isLayoutOld(err error) bool {
	for _, old := range []error{
		protocol.ErrNoTopic, protocol.ErrNoPartition, protocol.ErrNoLeader,
		kafka.UnknownTopicOrPartition, kafka.LeaderNotAvailable, kafka.NotLeaderForPartition, kafka.BrokerNotAvailable,
		kafka.ReplicaNotAvailable, kafka.KafkaStorageError, kafka.FencedLeaderEpoch, kafka.UnknownLeaderEpoch,
		kafka.Unknown, // also what the library makes of a part of a call that failed
	} {
		if errors.Is(err, old) {
			return true
		}
	}
	return false
}

func isUnknownTopic(err error) bool {
	return errors.Is(err, protocol.ErrNoTopic) || errors.Is(err, protocol.ErrNoPartition) || errors.Is(err, kafka.UnknownTopicOrPartition)
}

// isForMany reports whether a request is about many topics.
func isForMany(req kafka.Request) bool {
	f, ok := req.(*fetchRequest)
	return ok && f.node != anyNode
}

// topicOf returns the topic that a request is about, if there is one.
func topicOf(req kafka.Request) string {
	switch req := req.(type) {
	case *fetchRequest:
		return req.wants[0].topic
	case *produce.Request:
		return req.Topics[0].Topic
	case *rawproduce.Request:
		return req.Topics[0].Topic
	case *listoffsets.Request:
		return req.Topics[0].Topic
	case *metadata.Request:
		if len(req.TopicNames) > 0 {
			return req.TopicNames[0]
		}
	}
	return ""
}

// isPassing reports whether a call that failed with err may go well at once.
func isPassing(err error) bool {
	if isTLS(err) || errors.Is(err, errGone) {
		return false
	}
	code, _ := errors.AsType[kafka.Error](err)
	switch code {
	case kafka.GroupLoadInProgress, kafka.GroupCoordinatorNotAvailable, kafka.NotCoordinatorForGroup, kafka.NotController, kafka.ConcurrentTransactions:
		return true
	}
	return isConnectionLost(err) || isLayoutOld(err)
}

// isRegrouping reports whether err says that the group has changed, or is about to:
// a member joins again.
func isRegrouping(err error) bool {
	code, _ := errors.AsType[kafka.Error](err)
	switch code {
	case kafka.RebalanceInProgress, kafka.IllegalGeneration, kafka.UnknownMemberId, kafka.MemberIDRequired, kafka.FencedInstanceID:
		return true
	}
	return errors.Is(err, brokers.ErrLeaseLost)
}

// isUncoordinated reports whether err says that a group has no coordinator yet, or
// another one: a fresh cluster makes the topic of offsets for its first group, and a
// broker that takes a group over reads its past.
func isUncoordinated(err error) bool {
	code, _ := errors.AsType[kafka.Error](err)
	switch code {
	case kafka.GroupCoordinatorNotAvailable, kafka.GroupLoadInProgress, kafka.NotCoordinatorForGroup:
		return true
	}
	return false
}

// routing returns the first error of an answer that is about the layout of the
// cluster.
func routing(res kafka.Response) error {
	var codes []int16
	switch res := res.(type) {
	case *fetchAnswer:
		for _, topic := range res.Topics {
			for _, p := range topic.Partitions {
				codes = append(codes, p.ErrorCode)
			}
		}
	case *produce.Response:
		for _, topic := range res.Topics {
			for _, p := range topic.Partitions {
				codes = append(codes, p.ErrorCode)
			}
		}
	case *metadata.Response:
		for _, topic := range res.Topics {
			codes = append(codes, topic.ErrorCode)
		}
	case *listoffsets.Response:
		for _, topic := range res.Topics {
			for _, p := range topic.Partitions {
				codes = append(codes, p.ErrorCode)
			}
		}
	}
	for _, code := range codes {
		if err := codeError(code); isLayoutOld(err) {
			return err
		}
	}
	return nil
}

func codeError(code int16) error {
	if code == 0 {
		return nil
	}
	return kafka.Error(code)
}

// retry calls f until it succeeds, fails with what is there to stay, or has
// failed several times: after a broker's restart every pooled connection is
// dead, and after a topic's creation or a move of its leader not every broker
// knows of it.
func retry(ctx context.Context, f func() error) error {
	const attempts = 7
	pause := 20 * time.Millisecond
	for attempt := 1; ; attempt++ {
		err := f()
		if err == nil || attempt == attempts || !isPassing(err) {
			return err
		}
		timer := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-ctx.Done():
			timer.Stop()
			return err
		case <-timer.C:
		}
		pause = min(2*pause, 400*time.Millisecond)
	}
}
