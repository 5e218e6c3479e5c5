package kafka

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/wire"
)

// What tests of the public face need besides it.
const (
	Patience   = patience
	CommitPace = commitPace
	DonePace   = donePace
	DoneHeader = doneHeader
	DoneMark   = doneMark
	OwnerClean = ownerClean

	RackSetting, Selector = rackSetting, selector
	LongestName           = longestName
	LetterPartitions      = letterPartitions
	NewProtocol           = newProtocol
	Eager, Cooperative    = eager, cooperative
)

var (
	WithinTime  = withinTime
	UniqueName  = uniqueName
	Bodies      = bodies
	AnyContains = anyContains
	Acks        = acks
	KeyOf       = keyOf
	Noise       = noise
	Innocents   = innocents
	Runnable    = runnable
)

// patience is the deadline of calls that tests are not about: a broker that has
// just started on a busy machine takes its time.
const patience = time.Minute

// withinTime gives a call of a test no more than a generous time.
func withinTime(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func uniqueName(prefix string) string { return fmt.Sprintf("%s-%08x", prefix, rand.Uint32()) }

func bodies(ds []*brokers.Delivery) []string {
	var all []string
	for _, d := range ds {
		all = append(all, string(d.Message.Body))
	}
	slices.Sort(all)
	return all
}

func anyContains(errs []error, text string) bool {
	return slices.ContainsFunc(errs, func(err error) bool { return strings.Contains(err.Error(), text) })
}

// NewOn is New for a Broker that stores over connections of their own, and sees
// changes of a group soon.
func NewOn(o Options, store func(ctx context.Context, network, address string) (net.Conn, error)) (*Broker, error) {
	b, err := New(o)
	if err != nil {
		return nil, err
	}
	o = b.options
	o.Dial = store
	b.producer = newProducer(o)
	b.pace = 200 * time.Millisecond
	return b, nil
}

// MembersOf names the members of a group by their client IDs, and reports whether it has
// formed. The client library reads no members that own partitions.
func MembersOf(ctx context.Context, addresses []string, group string) (members map[string]string, stable bool, err error) {
	c := newClient(Options{Brokers: addresses})
	defer c.Close()
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = []string{group}
	res, err := c.askGroup(ctx, patience, group, req)
	if err != nil {
		return nil, false, err
	}
	found := res.(*kmsg.DescribeGroupsResponse).Groups[0]
	members = make(map[string]string)
	for _, m := range found.Members {
		members[m.ClientID] = m.MemberID
	}
	return members, found.State == "Stable", codeError(found.ErrorCode)
}

// Generation is that of a source which has begun with its partitions; it is the zero
// value before.
type Generation struct{ g *generation }

// GenerationOf returns the generation of a source.
func GenerationOf(s brokers.Source) Generation {
	src := s.(*source)
	if len(src.all()) == 0 {
		return Generation{}
	}
	return Generation{src.current()}
}

// End ends the generation.
func (g Generation) End(why error) { g.g.end(why) }

// IsOver reports whether the group is to be joined again.
func (g Generation) IsOver() bool { return g.g.ctx.Err() != nil }

// Owned names the partitions that a source has.
func Owned(s brokers.Source) (all []string) {
	for _, r := range s.(*source).all() {
		all = append(all, r.partition.String())
	}
	return all
}

// PlaceOf names the partition that a delivery is of.
func PlaceOf(d *brokers.Delivery) string { return d.Token.(*token).reader.partition.String() }

// IsCommitted reports whether a source has partitions, and nothing to commit.
func IsCommitted(s brokers.Source) bool {
	readers := s.(*source).all()
	return len(readers) > 0 && !slices.ContainsFunc(readers, func(r *reader) bool {
		_, ok := r.changed(ownerOpen)
		return ok
	})
}

// behind returns how many offsets above the low-water mark are done or skipped.
func (p *progress) behind() int { return int(p.settled.size) }

// suspects returns the offsets of all suspects, lowest first.
func (p *progress) suspects() []int64 { return slices.Sorted(maps.Keys(p.lost)) }

// withDefaults is complete for options that are good.
func (o Options) withDefaults() Options {
	o, _ = o.complete()
	return o
}

// Committed is what the metadata of a commit says.
type Committed struct{ *progress }

// ReadCommitted reads the commit of an offset.
func ReadCommitted(offset int64, metadata string) (c Committed, clean bool) {
	text, open := strings.CutPrefix(metadata, ownerOpen)
	text, clean = strings.CutPrefix(text, ownerClean)
	_, _, text = cutLog(text)
	return Committed{readProgress(offset, text)}, clean && !open && text == ""
}

// IsDone reports whether an offset is done, and Abandoned how many owners will have
// been lost with it if the present one is.
func (c Committed) IsDone(offset int64) bool   { return c.isDone(offset) }
func (c Committed) Abandoned(offset int64) int { return c.abandoned(offset) }

// CopyOf is the copy of a message that a worker without a secret stores.
func CopyOf(m brokers.Message, meta brokers.Meta) kafka.Message {
	r := copyOf(noSeal, m, meta)
	return kafka.Message{Key: r.key, Value: r.value, Headers: r.headers}
}

// Understood is what a copy says.
func Understood(copied kafka.Message) (brokers.Message, brokers.Meta) {
	r := record{offset: copied.Offset, time: copied.Time, key: copied.Key, value: copied.Value, headers: copied.Headers}
	return understood(r, partition{copied.Topic, copied.Partition}, true, wire.Limits{Now: time.Now(), MaxDelay: time.Hour})
}

// SizeOf is what a message counts against max.message.bytes.
func SizeOf(m kafka.Message) int {
	return record{key: m.Key, value: m.Value, headers: m.Headers}.size()
}

// OldMember is a worker of a version that knows only the eager protocol, as far as its
// group sees it: what it owns it gives up before it joins.
type OldMember struct {
	member *member
	t      *testing.T
	owned  []partition
}

// NewOldMember returns one that has not joined.
func NewOldMember(t *testing.T, o Options) *OldMember {
	o.CallTimeout = patience
	o = o.withDefaults()
	return &OldMember{t: t, member: &member{client: newClient(o), group: o.Group, options: o}}
}

// Owned names the partitions that it has.
func (o *OldMember) Owned() (all []string) {
	for _, p := range o.owned {
		all = append(all, p.String())
	}
	return all
}

// Leave ends it.
func (o *OldMember) Leave() error {
	o.owned = nil
	return o.member.leave(withinTime(o.t))
}

// Protocol is by which its group shares partitions out.
func (o *OldMember) Protocol() string {
	state, err := o.member.client.describe(withinTime(o.t), o.member.group)
	if err != nil {
		o.t.Fatal(err)
	}
	return state.protocol
}

// Refused joins once more as a new member, and returns the error of that.
func (o *OldMember) Refused() error {
	join := kmsg.NewPtrJoinGroupRequest()
	join.Group, join.ProtocolType, join.SessionTimeoutMillis, join.RebalanceTimeoutMillis = o.member.group, protocolType, 10_000, 10_000
	join.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: eager}}
	answer, err := o.member.client.askGroup(withinTime(o.t), patience, o.member.group, join)
	if err != nil {
		return err
	}
	return codeError(answer.(*kmsg.JoinGroupResponse).ErrorCode)
}

// Join joins once, and then as often as the group changes, until it is at rest.
func (o *OldMember) Join(topics ...string) {
	o.t.Helper()
	said := kmsg.NewConsumerMemberMetadata()
	said.Topics = topics
	for ctx := withinTime(o.t); ; {
		join := kmsg.NewPtrJoinGroupRequest()
		join.Group, join.MemberID, join.ProtocolType = o.member.group, o.member.id, protocolType
		join.SessionTimeoutMillis, join.RebalanceTimeoutMillis = int32(o.member.options.SessionTimeout.Milliseconds()), int32(o.member.options.RebalanceTimeout.Milliseconds())
		join.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: eager, Metadata: said.AppendTo(nil)}}
		answer, err := o.member.ask(ctx, patience, join)
		if err != nil {
			o.t.Fatal(err)
		}
		joined := answer.(*kmsg.JoinGroupResponse)
		if o.member.id = joined.MemberID; codeError(joined.ErrorCode) == kafka.MemberIDRequired {
			continue
		}
		sync := kmsg.NewPtrSyncGroupRequest()
		sync.Group, sync.Generation, sync.MemberID = o.member.group, joined.Generation, o.member.id
		if joined.LeaderID == o.member.id {
			sync.GroupAssignment, _, _ = o.member.lead(ctx, joined.Members)
			for i := range sync.GroupAssignment { // without the mark of newer versions
				plan := kmsg.NewConsumerMemberAssignment()
				if err := plan.ReadFrom(sync.GroupAssignment[i].MemberAssignment); err != nil {
					o.t.Fatal(err)
				}
				plan.UserData = nil
				sync.GroupAssignment[i].MemberAssignment = plan.AppendTo(nil)
			}
		}
		if answer, err = o.member.ask(ctx, patience, sync); err != nil {
			o.t.Fatal(err)
		}
		err = codeError(answer.(*kmsg.SyncGroupResponse).ErrorCode)
		if err == nil {
			o.owned, _, err = readAssigned(answer.(*kmsg.SyncGroupResponse).MemberAssignment)
		}
		last := o.member.id
		for quiet := time.Now(); err == nil && time.Since(quiet) < time.Second; <-time.After(100 * time.Millisecond) {
			err = o.member.beat(ctx, patience, joined.Generation, last)
		}
		if err == nil {
			return
		}
		if !isRegrouping(err) {
			o.t.Fatal(err)
		}
		o.owned = nil
	}
}
