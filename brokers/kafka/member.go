package kafka

import (
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
	protocolName = "redrive-even"
)

// member is one of a consumer group. It stays the same one until it leaves: over
// generations, over connections that break, and over a coordinator that restarts
// or moves, which remembers its members.
type member struct {
	client  *client
	group   string
	options Options

	id string // by which the group knows it; "" before it does. It belongs to whoever joins
}

// assignment is the share that a member has in a generation of its group.
type assignment struct {
	generation int32
	member     string
	partitions []partition    // by topic and number
	led        map[string]int // partitions by topic that it has spread over the group, if it is the leader
}

// join takes part in the next generation, for topics. It returns when the group has
// formed, which takes until all members have joined again.
func (m *member) join(ctx context.Context, topics []string) (assignment, error) {
	joined, err := m.enter(ctx, topics)
	if err != nil {
		return assignment{}, err
	}
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Group, sync.Generation, sync.MemberID, sync.InstanceID = m.group, joined.Generation, m.id, m.instance()
	var led map[string]int
	if joined.LeaderID == m.id {
		sync.GroupAssignment, led = m.lead(ctx, joined.Members)
	}
	answer, err := m.ask(ctx, m.options.CallTimeout+m.options.SessionTimeout, sync) // the leader may take its time
	if err != nil {
		return assignment{}, err
	}
	synced := answer.(*kmsg.SyncGroupResponse)
	if err := codeError(synced.ErrorCode); err != nil {
		return assignment{}, err
	}
	a := assignment{generation: joined.Generation, member: m.id, led: led}
	a.partitions, err = readAssigned(synced.MemberAssignment)
	return a, err
}

// enter joins, first to learn by which name: that answer comes at once, and is
// waited for, as the group keeps a place for the name.
func (m *member) enter(ctx context.Context, topics []string) (*kmsg.JoinGroupResponse, error) {
	const names = 3 // that the group may have forgotten, each with one that it gave
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.ProtocolType, req.InstanceID = m.group, protocolType, m.instance()
	req.SessionTimeoutMillis = int32(m.options.SessionTimeout.Milliseconds())
	req.RebalanceTimeoutMillis = int32(m.options.RebalanceTimeout.Milliseconds())
	offer := kmsg.NewJoinGroupRequestProtocol()
	offer.Name, offer.Metadata = protocolName, subscriptionOf(topics)
	req.Protocols = append(req.Protocols, offer)
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
		case errors.Is(err, kafka.UnknownMemberId) && try < 2*names:
			m.id = ""
		default:
			return nil, err
		}
	}
}

// lead spreads the partitions over the group.
func (m *member) lead(ctx context.Context, members []kmsg.JoinGroupResponseMember) ([]kmsg.SyncGroupRequestGroupAssignment, map[string]int) {
	subscribed := make(map[string][]string, len(members))
	var names []string
	for _, other := range members {
		subscribed[other.MemberID] = readSubscribed(other.ProtocolMetadata)
		names = append(names, subscribed[other.MemberID]...)
	}
	slices.Sort(names)
	counts := m.client.partitions(ctx, slices.Compact(names))
	var plan []kmsg.SyncGroupRequestGroupAssignment
	for id, share := range spread(subscribed, counts) {
		one := kmsg.NewSyncGroupRequestGroupAssignment()
		one.MemberID, one.MemberAssignment = id, assignedOf(share)
		plan = append(plan, one)
	}
	return plan, counts
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

// subscriptionOf is what a member says of itself in the group. Of the versions of it
// this one is read by all.
func subscriptionOf(topics []string) []byte {
	m := kmsg.NewConsumerMemberMetadata()
	m.Version, m.Topics = 0, topics
	return m.AppendTo(nil)
}

// readSubscribed reads the topics of a member: all versions begin with them. Some
// clients leave out what follows.
func readSubscribed(metadata []byte) []string {
	const version = 2
	m := kmsg.NewConsumerMemberMetadata()
	if len(metadata) < version || m.ReadFrom(append(make([]byte, version), metadata[version:]...)) != nil {
		return nil
	}
	return m.Topics
}

// assignedOf is what a leader tells a member of its share.
func assignedOf(share map[string][]int32) []byte {
	m := kmsg.NewConsumerMemberAssignment()
	m.Version = 0
	for topic, numbers := range share {
		one := kmsg.NewConsumerMemberAssignmentTopic()
		one.Topic, one.Partitions = topic, numbers
		m.Topics = append(m.Topics, one)
	}
	return m.AppendTo(nil)
}

// readAssigned reads what assignedOf, or a broker, has written. Nothing at all is no
// partition.
func readAssigned(data []byte) ([]partition, error) {
	m := kmsg.NewConsumerMemberAssignment()
	if len(data) > 0 {
		if err := m.ReadFrom(data); err != nil {
			return nil, err
		}
	}
	var ps []partition
	for _, topic := range m.Topics {
		for _, number := range topic.Partitions {
			ps = append(ps, partition{topic.Topic, int(number)})
		}
	}
	slices.SortFunc(ps, func(a, b partition) int {
		if c := strings.Compare(a.topic, b.topic); c != 0 {
			return c
		}
		return a.number - b.number
	})
	return ps, nil
}
