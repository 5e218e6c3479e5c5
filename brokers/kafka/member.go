package kafka

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	protocolType = "consumer"

	// eager is the protocol of all versions: members give up what they own before
	// they join again. With cooperative (KIP-429) they go on with it, and give up
	// only what a plan takes from them. A group chooses one that all members offer.
	eager       = "redrive-even"
	cooperative = "redrive-cooperative"

	// heeds marks a plan that gives nothing away that a member owns. Leaders of
	// versions that only know the eager protocol do not set it.
	heeds = "heeds owners"
)

// member is one of a consumer group. It stays the same one until it leaves: over
// generations, over connections that break, and over a coordinator that restarts
// or moves, which remembers its members.
type member struct {
	client  *client
	group   string
	options Options

	// These belong to whoever joins.
	id     string // by which the group knows it; "" before it does
	last   int32  // the newest generation that it has joined
	missed bool   // there was one without it since its last assignment
}

// assignment is the share that a member has in a generation of its group.
type assignment struct {
	generation  int32
	member      string
	cooperative bool           // what it owns goes on while the group forms again
	partitions  []partition    // by topic and number
	heeds       bool           // what the member owned, and has not got, has nobody
	missed      bool           // there was a generation without this member since its last one
	led         map[string]int // partitions by topic that it has spread over the group, if it is the leader
	withheld    bool           // from which it has withheld some that are to move
}

// join takes part in the next generation, with what the member claims. It returns when
// the group has formed, which takes until all members have joined again. Once the group
// has formed, it takes the assignment also if ctx ends: with that the member can commit.
// If the group forms again before there is an assignment, the error comes with the
// generation, in whose name the group lets the member commit until then.
func (m *member) join(ctx context.Context, c claim) (assignment, error) {
	joined, err := m.enter(ctx, c)
	if err != nil {
		return assignment{}, err
	}
	m.missed = m.missed || joined.Generation != m.last && joined.Generation != m.last+1
	m.last = joined.Generation
	a := assignment{generation: joined.Generation, member: m.id, missed: m.missed, cooperative: joined.Protocol != nil && *joined.Protocol == cooperative}
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Group, sync.Generation, sync.MemberID, sync.InstanceID = m.group, joined.Generation, m.id, m.instance()
	ctx, cancel := linger(ctx, 2*m.options.CallTimeout+m.options.SessionTimeout, lastCommit)
	defer cancel()
	if joined.LeaderID == m.id {
		sync.GroupAssignment, a.led, a.withheld = m.lead(ctx, joined.Members)
	}
	answer, err := m.ask(ctx, m.options.CallTimeout+m.options.SessionTimeout, sync) // the leader may take its time
	if err != nil {
		return a, err
	}
	synced := answer.(*kmsg.SyncGroupResponse)
	if err := codeError(synced.ErrorCode); err != nil {
		return a, err
	}
	a.partitions, a.heeds, err = readAssigned(synced.MemberAssignment)
	m.missed = false
	return a, err
}

// enter joins, first to learn by which name: that answer comes at once, and is
// waited for, as the group keeps a place for the name. A member that the group has
// forgotten does not join with a claim.
func (m *member) enter(ctx context.Context, c claim) (*kmsg.JoinGroupResponse, error) {
	const names = 3 // that the group may have forgotten, each with one that it gave
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.ProtocolType, req.InstanceID = m.group, protocolType, m.instance()
	req.SessionTimeoutMillis = int32(m.options.SessionTimeout.Milliseconds())
	req.RebalanceTimeoutMillis = int32(m.options.RebalanceTimeout.Milliseconds())
	for _, name := range m.options.protocols() {
		offer := kmsg.NewJoinGroupRequestProtocol()
		offer.Name, offer.Metadata = name, subscriptionOf(c)
		req.Protocols = append(req.Protocols, offer)
	}
	for try := 1; ; try++ {
		call, timeout := ctx, m.options.CallTimeout+m.options.RebalanceTimeout
		if m.id == "" {
			call, timeout = context.WithoutCancel(ctx), m.options.CallTimeout
		}
		req.MemberID = m.id
		answer, err := m.ask(call, timeout, req)
		if err != nil {
			return nil, err
		}
		joined := answer.(*kmsg.JoinGroupResponse)
		switch err := codeError(joined.ErrorCode); {
		case err == nil:
			m.id = joined.MemberID
			return joined, nil
		case errors.Is(err, kafka.MemberIDRequired) && try < 2*names:
			m.id = joined.MemberID
		case errors.Is(err, kafka.UnknownMemberId) && try < 2*names && len(c.owned) == 0:
			m.id = ""
		default:
			return nil, err
		}
	}
}

// lead spreads the partitions over the group.
func (m *member) lead(ctx context.Context, members []kmsg.JoinGroupResponseMember) (plan []kmsg.SyncGroupRequestGroupAssignment, led map[string]int, withheld bool) {
	claims := make(map[string]claim, len(members))
	var names []string
	for _, other := range members {
		c := readSubscribed(other.ProtocolMetadata)
		claims[other.MemberID] = c
		names = append(names, c.topics...)
	}
	slices.Sort(names)
	led = m.client.partitions(ctx, slices.Compact(names))
	shares, withheld := spread(claims, led)
	for id, share := range shares {
		one := kmsg.NewSyncGroupRequestGroupAssignment()
		one.MemberID, one.MemberAssignment = id, assignedOf(share)
		plan = append(plan, one)
	}
	return plan, led, withheld
}

// beat tells the group that the member of a generation lives.
func (m *member) beat(ctx context.Context, timeout time.Duration, generation int32, id string) error {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.Generation, req.MemberID, req.InstanceID = m.group, generation, id, m.instance()
	answer, err := m.ask(ctx, timeout, req)
	if err != nil {
		return err
	}
	return codeError(answer.(*kmsg.HeartbeatResponse).ErrorCode)
}

// instance is what the group knows a static member by; nil if it is none.
func (m *member) instance() *string {
	if m.options.InstanceID == "" {
		return nil
	}
	return &m.options.InstanceID
}

// leave has the group go on without this member, whatever it is doing: waiting for
// others to join, too. A static member stays for the session, unless it is to leave.
func (m *member) leave(ctx context.Context) error {
	if m.id == "" || m.instance() != nil && !m.options.LeaveGroup {
		return nil
	}
	return m.client.expel(ctx, m.options.CallTimeout, m.group, m.id)
}

// expel has a group go on without one of its members.
func (c *client) expel(ctx context.Context, timeout time.Duration, group, id string) error {
	req := kmsg.NewPtrLeaveGroupRequest()
	one := kmsg.NewLeaveGroupRequestMember()
	one.MemberID = id
	req.Group, req.Members = group, append(req.Members, one)
	answer, err := c.askGroup(ctx, timeout, group, req)
	if err != nil {
		return err
	}
	left := answer.(*kmsg.LeaveGroupResponse)
	if len(left.Members) > 0 && left.ErrorCode == 0 {
		left.ErrorCode = left.Members[0].ErrorCode
	}
	return codeError(left.ErrorCode)
}

func (m *member) ask(ctx context.Context, timeout time.Duration, req kmsg.Request) (kmsg.Response, error) {
	return m.client.askGroup(ctx, timeout, m.group, req)
}

// protocols are those that a member offers, the best first.
func (o Options) protocols() []string {
	if o.CooperativeOnly {
		return []string{cooperative}
	}
	return []string{cooperative, eager}
}

// subscriptionOf is what a member says of itself in the group. A member that owns
// nothing always says the same, so that a follower that joins again changes nothing.
func subscriptionOf(c claim) []byte {
	m := kmsg.NewConsumerMemberMetadata()
	m.Version, m.Topics = 2, c.topics
	for i, p := range c.owned {
		if i == 0 || c.owned[i-1].topic != p.topic {
			one := kmsg.NewConsumerMemberMetadataOwnedPartition()
			one.Topic = p.topic
			m.OwnedPartitions = append(m.OwnedPartitions, one)
		}
		last := &m.OwnedPartitions[len(m.OwnedPartitions)-1]
		last.Partitions = append(last.Partitions, int32(p.number))
	}
	if len(c.owned) > 0 {
		m.Generation = c.generation
	}
	return m.AppendTo(nil)
}

// readSubscribed reads what a member says of itself: all versions begin with the
// topics. Some clients leave out what follows, and what cannot be read claims nothing.
func readSubscribed(metadata []byte) claim {
	m := kmsg.NewConsumerMemberMetadata()
	if m.ReadFrom(metadata) != nil {
		const version = 2
		m = kmsg.NewConsumerMemberMetadata()
		if len(metadata) < version || m.ReadFrom(append(make([]byte, version), metadata[version:]...)) != nil {
			return claim{}
		}
	}
	c := claim{topics: m.Topics, generation: m.Generation}
	for _, topic := range m.OwnedPartitions {
		for _, number := range topic.Partitions {
			c.owned = append(c.owned, partition{topic.Topic, int(number)})
		}
	}
	return c
}

// assignedOf is what a leader tells a member of its share.
func assignedOf(share map[string][]int32) []byte {
	m := kmsg.NewConsumerMemberAssignment()
	m.Version, m.UserData = 0, []byte(heeds)
	for topic, numbers := range share {
		one := kmsg.NewConsumerMemberAssignmentTopic()
		one.Topic, one.Partitions = topic, numbers
		m.Topics = append(m.Topics, one)
	}
	return m.AppendTo(nil)
}

// readAssigned reads what a leader, or a broker, has written, and whether the plan
// heeds what members own. Nothing at all is no partition.
func readAssigned(data []byte) (ps []partition, isHeeding bool, err error) {
	m := kmsg.NewConsumerMemberAssignment()
	if len(data) > 0 {
		if err := m.ReadFrom(data); err != nil {
			return nil, false, err
		}
	}
	for _, topic := range m.Topics {
		for _, number := range topic.Partitions {
			ps = append(ps, partition{topic.Topic, int(number)})
		}
	}
	slices.SortFunc(ps, comparePartitions)
	return slices.Compact(ps), string(m.UserData) == heeds, nil
}

func comparePartitions(a, b partition) int {
	return cmp.Or(strings.Compare(a.topic, b.topic), a.number-b.number)
}
