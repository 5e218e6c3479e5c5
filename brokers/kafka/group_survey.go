package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers/inspect"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
	"github.com/redrive-go/redrive/brokers/kafka/internal/cluster"
)

// groupState is what a user is shown of a group.
type groupState struct {
	denied   bool
	rights   int32  // a bit for each operation, or unknownRights
	protocol string // by which members share partitions, "" if there are none
	members  []groupMember
}

type groupMember struct {
	name   string // of the client, and where it is
	topics []string
}

// newProtocol stands for groups that the broker itself assigns (KIP-848).
const newProtocol = "group.protocol=consumer"

// describe asks what there is of a group.
func (c *client) describe(ctx context.Context, group string) (groupState, error) {
	var state groupState
	err := untilCoordinated(ctx, func() (err error) {
		state, err = c.describeOnce(ctx, group)
		return err
	})
	if errors.Is(err, kafka.GroupAuthorizationFailed) {
		return groupState{denied: true}, nil
	}
	return state, explain(err, "ask the brokers about the group %q", group)
}

func (c *client) describeOnce(ctx context.Context, group string) (groupState, error) {
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups, req.IncludeAuthorizedOperations = []string{group}, true
	res, err := c.askGroup(ctx, c.options.CallTimeout, group, req)
	if err != nil {
		return groupState{}, err
	}
	got := res.(*kmsg.DescribeGroupsResponse).Groups
	if len(got) == 0 {
		return groupState{rights: unknownRights}, nil
	}
	state := groupState{rights: got[0].AuthorizedOperations, protocol: got[0].Protocol}
	for _, m := range got[0].Members {
		state.members = append(state.members, groupMember{nameOf(m.ClientID, m.ClientHost), readSubscribed(m.ProtocolMetadata).topics})
	}
	if err := codeError(got[0].ErrorCode); err != nil || len(state.members) > 0 {
		return state, err
	}
	return c.describeNew(ctx, group, state)
}

// describeNew asks about a group that the broker itself assigns, of which the older
// request says that there is none.
func (c *client) describeNew(ctx context.Context, group string, state groupState) (groupState, error) {
	req := kmsg.NewPtrConsumerGroupDescribeRequest()
	req.Groups = []string{group}
	res, err := c.askGroup(ctx, c.options.CallTimeout, group, req)
	if errors.Is(err, cluster.ErrNoSuchCall) {
		return state, nil
	}
	if err != nil {
		return state, err
	}
	for _, g := range res.(*kmsg.ConsumerGroupDescribeResponse).Groups {
		for _, m := range g.Members { // there are none with an error, such as that there is no such group
			state.protocol = newProtocol
			state.members = append(state.members, groupMember{nameOf(m.ClientID, m.ClientHost), m.SubscribedTopics})
		}
	}
	return state, nil
}

func nameOf(client, host string) string {
	return fmt.Sprintf("%q at %s", client, strings.TrimPrefix(host, "/"))
}

// untilCoordinated runs f until its group has a coordinator. A fresh cluster makes the
// topic of offsets for its first group, which takes seconds.
func untilCoordinated(ctx context.Context, f func() error) error {
	for tries := 1; ; tries++ {
		err := retry(ctx, f)
		if !isUncoordinated(err) || tries == coordinating || !adapter.Rest(ctx, rejoinPause) {
			return err
		}
	}
}

// surveyGroup looks at the group of p, and at where it begins. Where it has no
// coordinator for long, joining it tells.
func (b *Broker) surveyGroup(ctx context.Context, p plan) ([]inspect.Finding, error) {
	state, err := b.client.describe(ctx, p.group)
	if isUncoordinated(err) && b.options.Start.kind != committed {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if state.denied || state.rights != unknownRights && state.rights&(1<<kmsg.ACLOperationRead) == 0 {
		return []inspect.Finding{{
			Severity: inspect.Blocking, Topic: p.group, Setting: "the user's right on the group", Value: "none", Want: "Read", Why: "the worker cannot join it",
			Fix: b.options.grant([]string{"Read"}, "--group "+shell(p.group)), See: setUp + "#rights-of-a-worker",
		}}, nil
	}
	begins, err := b.surveyStart(ctx, p)
	return append(b.options.strangers(p, state), begins...), err
}

// strangers finds members of the group that are no workers.
func (o Options) strangers(p plan, state groupState) []inspect.Finding {
	if slices.Contains([]string{"", eager, cooperative}, state.protocol) { // not known while the group forms
		return nil
	}
	var names []string
	for _, m := range state.members {
		if _, ours := o.workerTopics(p.group, m); !ours { // in a group of the new protocol there may be both
			names = append(names, m.name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	f := inspect.Finding{
		Severity: inspect.Blocking, Topic: p.group, Setting: "protocol of the group", Value: state.protocol, Want: cooperative,
		Why: fmt.Sprintf("%d other consumers are in the group, and Kafka lets only consumers of one kind share it: %s", len(names), strings.Join(names, ", ")),
		Fix: "stop them, or choose another group", See: setUp + "#groups",
	}
	if state.protocol == newProtocol {
		f.Severity = inspect.Noted
		f.Why = fmt.Sprintf("%d other consumers are in the group: they take their share, and messages that were done out of order are handled again when they commit: %s", len(names), strings.Join(names, ", "))
	}
	return []inspect.Finding{f}
}

// workerTopics are the topics that a member of a group reads beside delay topics,
// without which it is no worker.
func (o Options) workerTopics(group string, m groupMember) (topics []string, ours bool) {
	for _, topic := range m.topics {
		if strings.HasPrefix(topic, o.delayTopic(group, "")) {
			ours = true
		} else {
			topics = append(topics, topic)
		}
	}
	slices.Sort(topics)
	return topics, ours
}

// meet tells of members of the group that do not belong there, when its members are
// known: of the same ones once.
func (s *source) meet(ctx context.Context) {
	for again := true; again; again = adapter.Rest(ctx, time.Second) {
		state, err := s.broker.client.describe(ctx, s.plan.group)
		if err != nil || state.protocol == "" {
			continue
		}
		misfits := s.broker.options.misfits(s.plan, state)
		if misfits != "" && misfits != s.misfits {
			s.fail(errors.New(misfits))
		}
		s.misfits = misfits
		return
	}
}

// misfits says which members are no workers, or read other topics.
func (o Options) misfits(p plan, state groupState) string {
	var said []string
	for _, f := range o.strangers(p, state) {
		said = append(said, f.String())
	}
	for _, m := range state.members {
		topics, ours := o.workerTopics(p.group, m)
		if ours && !p.readOnly && !slices.Equal(topics, p.topics) {
			said = append(said, fmt.Sprintf("the worker %s of the group %q reads the topics %q, and this one %q: retries of what a worker does not read go back to their delay topics, and are late; "+
				"let all workers of a group read the same topics, or give this one a group of its own", m.name, p.group, topics, p.topics))
		}
	}
	slices.Sort(said)
	return strings.Join(slices.Compact(said), "\n")
}
