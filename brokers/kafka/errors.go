package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
	"github.com/redrive-go/redrive/brokers/kafka/internal/cluster"
)

// rangeError reports an offset that the partition does not have: the records
// fell off the log, or the topic was made anew. Where the bounds are unknown
// they are -1.
type rangeError struct {
	partition   partition
	offset      int64
	first, last int64 // what there is: from first up to, not including, last
	anew        bool  // another log has the same offsets
	cut         bool  // at last: what follows are other records than those before offset
}

// Error says what is there instead, and what that means.
func (e *rangeError) Error() string {
	if e.anew {
		return fmt.Sprintf("%s is another log than the one of which offset %d was reached: the topic was deleted and made anew; it is read from its first record, %d", e.partition, e.offset, e.first)
	}
	if e.cut {
		return fmt.Sprintf("the log of %s was read up to offset %d and has been cut at offset %d since: records that were acknowledged got lost with a broker (unclean leader election); those that have their offsets now are read", e.partition, e.offset, e.last)
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
	doing = fmt.Sprintf(doing, args...)
	if fix, kind := cure(err); kind != nil && !errors.Is(err, kind) {
		if fix != "" {
			return fmt.Errorf("%s: %w: %s: %w", doing, kind, fix, err)
		}
		return fmt.Errorf("%s: %w: %w", doing, kind, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// cures are the codes of which more is known than their text: of which kind an error
// is, and what an operator can do, where nobody else can do anything.
var cures = []struct {
	kind  error
	codes []kafka.Error
	fix   string
}{
	{brokers.ErrLeaseLost, []kafka.Error{kafka.IllegalGeneration, kafka.UnknownMemberId, kafka.RebalanceInProgress, kafka.FencedInstanceID}, ""},
	{brokers.ErrRefused, []kafka.Error{kafka.MessageSizeTooLarge, kafka.InvalidRecord, kafka.InvalidTimestamp, kafka.InvalidMessageSize}, ""},
	{brokers.ErrNotFound, []kafka.Error{kafka.UnknownTopicOrPartition},
		"create the topic, or correct its name; without the right to describe it, it looks missing too"},
	{brokers.ErrMisconfigured, []kafka.Error{kafka.InvalidTopic},
		"a name has 1 to 249 letters, digits, dots, underscores and hyphens"},
	{brokers.ErrMisconfigured, []kafka.Error{kafka.TopicAuthorizationFailed},
		"grant the user the rights on the topic: Read and Describe to consume, Write to retry and dead-letter, DescribeConfigs, and Create for delay topics"},
	{brokers.ErrMisconfigured, []kafka.Error{kafka.GroupAuthorizationFailed},
		"grant the user the right Read on the group"},
	{brokers.ErrMisconfigured, []kafka.Error{kafka.ClusterAuthorizationFailed},
		"grant the user the right on the cluster, such as Create, or create the topics beforehand"},
	{brokers.ErrMisconfigured, []kafka.Error{kafka.SASLAuthenticationFailed, kafka.IllegalSASLState},
		"check user and password, and the mechanism, in Options.SASL"},
	{brokers.ErrMisconfigured, []kafka.Error{kafka.UnsupportedSASLMechanism},
		"the broker offers no such mechanism: change the mechanism in Options.SASL, or sasl.enabled.mechanisms there"},
	{brokers.ErrMisconfigured, []kafka.Error{kafka.InvalidPartitionNumber, kafka.InvalidReplicaAssignment, kafka.InvalidConfiguration, kafka.PolicyViolation},
		"the broker does not allow a topic like this"},
	{brokers.ErrMisconfigured, []kafka.Error{kafka.OffsetMetadataTooLarge},
		"offset.metadata.max.bytes is below the default of 4096: raise it"},
	{brokers.ErrMisconfigured, []kafka.Error{kafka.InconsistentGroupProtocol},
		"other members of the group share partitions out in another way: stop them; or, if they are workers of a version that knows no cooperative rebalancing, unset Options.CooperativeOnly until they are replaced"},
	{brokers.ErrMisconfigured, []kafka.Error{kafka.InvalidGroupId, kafka.InvalidSessionTimeout},
		"other members of the group, or the broker's settings for groups, do not allow this one"},
	{brokers.ErrMisconfigured, []kafka.Error{kafka.UnsupportedVersion, kafka.UnsupportedForMessageFormat},
		"use Kafka 2.4 or newer"},
}

// cure says how to fix err, and of which kind it is.
func cure(err error) (fix string, kind error) {
	if isTLS(err) {
		return "check Options.TLS, and that the address is a TLS listener of the broker", brokers.ErrMisconfigured
	}
	for _, c := range cures {
		if is(err, c.codes...) {
			return c.fix, c.kind
		}
	}
	return "", nil
}

// is reports whether err is of one of these codes.
func is(err error, codes ...kafka.Error) bool {
	code, ok := errors.AsType[kafka.Error](err)
	return ok && slices.Contains(codes, code)
}

// isTLS reports whether err is what one side has against the certificates or
// the TLS of the other.
func isTLS(err error) bool {
	_, ours := errors.AsType[*tls.CertificateVerificationError](err)
	_, none := errors.AsType[tls.RecordHeaderError](err)
	return ours || none || strings.Contains(err.Error(), "remote error: tls: ") ||
		strings.Contains(err.Error(), "broker appears to be expecting TLS")
}

// isPassing reports whether a call that failed with err may go well at once.
func isPassing(err error) bool {
	if isTLS(err) || errors.Is(err, cluster.ErrGone) {
		return false
	}
	return isUncoordinated(err) || is(err, kafka.NotController, kafka.ConcurrentTransactions) || cluster.IsConnectionLost(err) || cluster.IsLayoutOld(err)
}

// isRegrouping reports whether err says that the group has changed, or is about to:
// a member joins again.
func isRegrouping(err error) bool {
	return is(err, kafka.MemberIDRequired, kafka.RebalanceInProgress, kafka.IllegalGeneration, kafka.UnknownMemberId, kafka.FencedInstanceID) ||
		errors.Is(err, brokers.ErrLeaseLost)
}

// isUncoordinated reports whether err says that a group has no coordinator yet, or
// another one: a fresh cluster makes the topic of offsets for its first group, and a
// broker that takes a group over reads its past.
func isUncoordinated(err error) bool {
	return is(err, kafka.GroupCoordinatorNotAvailable, kafka.GroupLoadInProgress, kafka.NotCoordinatorForGroup)
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
		if !adapter.Rest(ctx, pause/2+rand.N(pause/2)) {
			return err
		}
		pause = min(2*pause, 400*time.Millisecond)
	}
}
