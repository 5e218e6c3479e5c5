package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/heartbeat"
	"github.com/segmentio/kafka-go/protocol/joingroup"
	"github.com/segmentio/kafka-go/protocol/leavegroup"
	"github.com/segmentio/kafka-go/protocol/offsetcommit"
	"github.com/segmentio/kafka-go/protocol/offsetfetch"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/syncgroup"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
)

// formed is one generation of a group, as a test wants its member to see it.
type formed struct {
	protocol   string        // cooperative unless it is set
	share      []int         // partitions of orders
	heedless   bool          // the leader is of an old version
	skipped    int32         // generations without the member
	join, sync time.Duration // that the other members, and the leader, take
	beside     *claim        // what another member says, which the member leads
}

// coordinator is that of a group in the stub, with one real member.
type coordinator struct {
	*stub
	src *source

	mu         sync.Mutex
	next       []formed // the last of them is formed again if the member joins once more
	state      string
	generation int32
	refusal    kafka.Error // of heartbeats
	joins      []claim
	offers     []string
	commits    map[partition]string // the last one: generation, offset and metadata
	owned      map[partition]commitment
	refused    int // commits
}

// Between two generations members are waited for, and then for the leader's plan.
const (
	stable     = "stable"
	preparing  = "preparing"
	completing = "completing"
)

// onGroup runs test in virtual time, on a member of a group and a topic of so many
// partitions with 10 records each.
func onGroup(t *testing.T, partitions int, options Options, begin formed, test func(t *testing.T, c *coordinator)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &coordinator{stub: newStub(t), next: []formed{begin}, state: preparing, commits: make(map[partition]string), owned: make(map[partition]commitment)}
		c.stub.topics = map[string]int{"orders": partitions, delayOfOrders: 1}
		c.log = []rawBatch{{records: numbered(0, 10)}}
		c.answer = c.coordinate
		options.Brokers, options.Dial, options.Group = []string{"stub:9092"}, c.dial, "g"
		b, err := New(options)
		if err != nil {
			t.Fatal(err)
		}
		sub := brokers.Subscription{Topics: []string{"orders"}, Group: "g", MaxDelay: time.Minute}
		plan, err := b.options.plan(sub)
		if err != nil {
			t.Fatal(err)
		}
		c.src = newSource(b, sub, plan, nil)
		defer func() {
			if err := c.src.Close(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
			b.Close(context.WithoutCancel(t.Context()))
			time.Sleep(time.Minute) // for what the stub is about to answer
		}()
		test(t, c)
	})
}

func (c *coordinator) coordinate(m protocol.Message, _ int) (protocol.Message, error) {
	switch req := m.(type) {
	case *joingroup.Request:
		return c.join(req), nil
	case *syncgroup.Request:
		return c.sync(req), nil
	case *heartbeat.Request:
		c.mu.Lock()
		defer c.mu.Unlock()
		res := kmsg.NewPtrHeartbeatResponse() // that of kafka-go is not what clients read
		res.Version, res.ErrorCode = 3, int16(c.beat(req))
		return rawAnswer{res}, nil
	case *offsetcommit.Request:
		return c.store(req), nil
	case *offsetfetch.Request:
		return c.load(req), nil
	case *leavegroup.Request:
		return &leavegroup.Response{}, nil
	}
	return nil, nil
}

// offered names the protocols that the last member to join has offered.
func (c *coordinator) offered() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.offers, " ")
}

func (c *coordinator) join(req *joingroup.Request) protocol.Message {
	if req.MemberID == "" {
		return &joingroup.Response{ErrorCode: int16(kafka.MemberIDRequired), MemberID: "m"}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.joins, c.offers = append(c.joins, readSubscribed(req.Protocols[0].Metadata)), nil
	for _, offer := range req.Protocols {
		c.offers = append(c.offers, offer.Name)
	}
	switch code := c.refusal; code {
	case 0, kafka.IllegalGeneration:
		c.refusal = 0
	case kafka.UnknownMemberId:
		c.refusal = 0
		fallthrough
	default:
		return &joingroup.Response{ErrorCode: int16(code)}
	}
	if c.generation > 0 && len(c.next) > 1 {
		c.next = c.next[1:]
	}
	f := c.next[0]
	c.state = preparing
	c.pass(f.join)
	c.generation += 1 + f.skipped
	c.state = completing
	name := f.protocol
	if name == "" {
		name = cooperative
	}
	res := &joingroup.Response{GenerationID: c.generation, ProtocolName: name, LeaderID: "another", MemberID: "m"}
	if f.beside != nil {
		res.LeaderID = "m"
		res.Members = []joingroup.ResponseMember{{MemberID: "m", Metadata: req.Protocols[0].Metadata}, {MemberID: "another", Metadata: subscriptionOf(*f.beside)}}
	}
	return res
}

// pass lets time pass. mu is held before and after it.
func (c *coordinator) pass(d time.Duration) {
	c.mu.Unlock()
	time.Sleep(d)
	c.mu.Lock()
}

func (c *coordinator) sync(req *syncgroup.Request) protocol.Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	if req.GenerationID != c.generation {
		c.t.Errorf("sync of generation %d, which is %d", req.GenerationID, c.generation)
	}
	f := c.next[0]
	c.pass(f.sync)
	c.state = stable
	for _, plan := range req.Assignments {
		if plan.MemberID == "m" {
			return &syncgroup.Response{Assignments: plan.Assignment}
		}
	}
	share := kmsg.NewConsumerMemberAssignment()
	topic := kmsg.NewConsumerMemberAssignmentTopic()
	topic.Topic = "orders"
	for _, number := range f.share {
		topic.Partitions = append(topic.Partitions, int32(number))
	}
	share.Topics = append(share.Topics, topic)
	if !f.heedless {
		share.UserData = []byte(heeds)
	}
	return &syncgroup.Response{Assignments: share.AppendTo(nil)}
}

// beat says what is against a heartbeat. mu is held.
func (c *coordinator) beat(req *heartbeat.Request) kafka.Error {
	switch {
	case c.refusal != 0:
		return c.refusal
	case req.GenerationID != c.generation:
		return kafka.IllegalGeneration
	case c.state == preparing:
		return kafka.RebalanceInProgress
	}
	return 0
}

func (c *coordinator) store(req *offsetcommit.Request) protocol.Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	code := kafka.Error(0)
	switch {
	case c.refusal != 0:
		code = c.refusal
	case req.GenerationID != c.generation:
		code = kafka.IllegalGeneration
	case c.state == completing:
		code = kafka.RebalanceInProgress
	}
	if code != 0 {
		c.refused++
	}
	res := &offsetcommit.Response{}
	for _, topic := range req.Topics {
		out := offsetcommit.ResponseTopic{Name: topic.Name}
		for _, p := range topic.Partitions {
			out.Partitions = append(out.Partitions, offsetcommit.ResponsePartition{PartitionIndex: p.PartitionIndex, ErrorCode: int16(code)})
			if at := (partition{topic.Name, int(p.PartitionIndex)}); code == 0 {
				c.owned[at] = commitment{p.CommittedOffset, p.CommittedMetadata}
				c.commits[at] = fmt.Sprint(req.GenerationID, " ", p.CommittedOffset, p.CommittedMetadata[:1])
			}
		}
		res.Topics = append(res.Topics, out)
	}
	return res
}

func (c *coordinator) load(req *offsetfetch.Request) protocol.Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	res := &offsetfetch.Response{}
	for _, topic := range req.Topics {
		out := offsetfetch.ResponseTopic{Name: topic.Name}
		for _, number := range topic.PartitionIndexes {
			at, ok := c.owned[partition{topic.Name, int(number)}]
			if !ok {
				at.offset = -1
			}
			out.Partitions = append(out.Partitions, offsetfetch.ResponsePartition{PartitionIndex: number, CommittedOffset: at.offset, Metadata: at.metadata})
		}
		res.Topics = append(res.Topics, out)
	}
	return res
}

// rebalance has the group form again.
func (c *coordinator) rebalance(next ...formed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next, c.state = append(c.next[:1:1], next...), preparing
}

// refuse answers the member with an error from now on.
func (c *coordinator) refuse(code kafka.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refusal = code
}

// committed is the last commit of a partition: generation, offset, and how its owner
// left it.
func (c *coordinator) committed(number int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.commits[partition{"orders", number}]
}

// claims are what the member has said when it joined, since the n-th time.
func (c *coordinator) claims(n int) (all string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range c.joins[min(n, len(c.joins)):] {
		var numbers []int
		for _, p := range j.owned {
			numbers = append(numbers, p.number)
		}
		all += fmt.Sprint(numbers, "@", j.generation, " ")
	}
	return strings.TrimSpace(all)
}

// take receives n deliveries, and returns them by partition.
func (c *coordinator) take(n int) map[int][]*brokers.Delivery {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	by := make(map[int][]*brokers.Delivery)
	for got := 0; got < n; {
		ds, err := c.src.Receive(ctx, n-got)
		if err != nil {
			c.t.Fatalf("received %d of %d: %v", got, n, err)
		}
		for _, d := range ds {
			number := d.Token.(*token).reader.partition.number
			by[number] = append(by[number], d)
		}
		got += len(ds)
	}
	return by
}

func (c *coordinator) ack(ds ...*brokers.Delivery) error {
	return errors.Join(c.src.Settle(c.t.Context(), acks(ds))...)
}

// quiet fails the test if the source has something to hand out, or to tell.
func (c *coordinator) quiet(d time.Duration) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), d)
	defer cancel()
	if ds, err := c.src.Receive(ctx, 100); len(ds) > 0 || ctx.Err() == nil {
		c.t.Errorf("received %v, %v", bodies(ds), err)
	}
}

func (c *coordinator) is(what, got, want string) {
	c.t.Helper()
	if got != want {
		c.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// sessions are those that go on of what is handed out.
func sessions(by map[int][]*brokers.Delivery) string {
	var alive []int
	for _, number := range slices.Sorted(maps.Keys(by)) {
		if by[number][0].Session.Err() == nil {
			alive = append(alive, number)
		}
	}
	return fmt.Sprint(alive)
}

// A join stops only what moves: handlers of what stays go on, before and after the group
// has formed, and are committed. What moves drains, is committed, and the member joins
// again without it.
func TestJoinStopsOnlyWhatMoves(t *testing.T) {
	onGroup(t, 3, Options{}, formed{share: []int{0, 1}}, func(t *testing.T, c *coordinator) {
		held := c.take(20)
		reader := c.src.all()[0]
		fetched := c.count(protocol.OffsetFetch)
		c.rebalance(formed{share: []int{0}, join: 8 * time.Second, sync: 2 * time.Second}, formed{share: []int{0, 2}})
		time.Sleep(5 * time.Second) // the others are waited for
		c.is("while the group forms, sessions", sessions(held), "[0 1]")
		if err := c.ack(held[0][0], held[1][0]); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		c.is("committed while the group forms", c.committed(0)+", "+c.committed(1), "1 1o, 1 1o")
		time.Sleep(8 * time.Second) // generation 2, partition 1 drains
		c.is("claims", c.claims(1), "[0 1]@1")
		c.is("while partition 1 drains, sessions", sessions(held), "[0 1]")
		if err := c.ack(held[1][1:]...); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		c.is("partition 1 in the end", c.committed(1), "2 10c")
		c.is("claims then", c.claims(2), "[0]@2")
		c.is("sessions then", sessions(held), "[0]")
		if err := c.ack(held[1][9]); !errors.Is(err, brokers.ErrSettled) {
			t.Error(err)
		}
		c.take(10) // of partition 2
		if err := c.ack(held[0][1:]...); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		c.is("partition 0 in the end", c.committed(0), "3 10o")
		c.quiet(time.Minute)
		if rs := c.src.all(); rs[0] != reader || len(rs) != 2 || c.count(protocol.OffsetFetch) != fetched+1 {
			t.Errorf("%d readers after %d looks at commits, want the one of before and a new one", len(rs), c.count(protocol.OffsetFetch))
		}
	})
}

// A partition that moves ends after a third of RebalanceTimeout. What was handed out of
// it is no evidence.
func TestPartitionThatMovesIsCutOff(t *testing.T) {
	onGroup(t, 2, Options{RebalanceTimeout: 30 * time.Second}, formed{share: []int{0, 1}}, func(t *testing.T, c *coordinator) {
		held := c.take(20)
		time.Sleep(time.Second)
		c.rebalance(formed{share: []int{0}})
		time.Sleep(11 * time.Second) // the next heartbeat is 2 s away
		c.is("sessions before the end", sessions(held), "[0 1]")
		time.Sleep(4 * time.Second)
		c.is("sessions", sessions(held), "[0]")
		if err := c.ack(held[1]...); !errors.Is(err, brokers.ErrLeaseLost) {
			t.Errorf("ack of what has moved: %v", err)
		}
		c.mu.Lock()
		at := c.owned[partition{"orders", 1}]
		c.mu.Unlock()
		if _, clean := ReadCommitted(at.offset, at.metadata); !clean || at.offset != 0 {
			t.Errorf("committed %+v, want no marks", at)
		}
	})
}

// A commit that is refused because the group forms is repeated in the next generation,
// and nobody hears of it.
func TestRefusedCommitIsRepeated(t *testing.T) {
	onGroup(t, 1, Options{}, formed{share: []int{0}}, func(t *testing.T, c *coordinator) {
		held := c.take(10)
		c.rebalance(formed{share: []int{0}, join: time.Second, sync: 10 * time.Second})
		time.Sleep(6 * time.Second) // the leader is waited for
		if err := c.ack(held[0]...); err != nil {
			t.Error(err)
		}
		time.Sleep(3 * time.Second)
		c.is("while the leader is waited for, committed", c.committed(0), "1 0o")
		c.mu.Lock()
		refused := c.refused
		c.mu.Unlock()
		if refused == 0 {
			t.Error("no commit is refused")
		}
		c.quiet(10 * time.Second)
		c.is("then", c.committed(0), "2 10o")
		c.is("claims", c.claims(1), "[0]@1")
	})
}

// A settlement that is on its way when its partition is given up says what became of it:
// an ack is lost, and of a retry both the copy and the original may come.
func TestSettlingWhileThePartitionIsGivenUp(t *testing.T) {
	onGroup(t, 1, Options{}, formed{share: []int{0}}, func(t *testing.T, c *coordinator) {
		held := c.take(10)[0]
		r := held[0].Token.(*token).reader
		answer := c.answer
		c.change(func(s *stub) {
			s.answer = func(m protocol.Message, n int) (protocol.Message, error) {
				if req, ok := m.(*produce.Request); ok {
					r.cancel(brokers.ErrLeaseLost)
					return produced(req, 0), nil
				}
				return answer(m, n)
			}
		})
		errs := c.src.Settle(t.Context(), []brokers.Settlement{{Delivery: held[0], Action: brokers.Retry, Delay: time.Second}})
		if err := errors.Join(errs...); !errors.Is(err, brokers.ErrUnknownOutcome) {
			t.Errorf("retry: %v", err)
		}
		if lost := finish([]*token{held[1].Token.(*token), held[2].Token.(*token)}); len(lost) != 2 {
			t.Errorf("%d of 2 acks are lost", len(lost))
		}
	})
}

// Closing while the leader is waited for commits in the new generation.
func TestCloseCommitsInTheGenerationThatForms(t *testing.T) {
	onGroup(t, 1, Options{}, formed{share: []int{0}}, func(t *testing.T, c *coordinator) {
		held := c.take(10)
		time.Sleep(time.Second)
		c.rebalance(formed{share: []int{0}, sync: 2 * time.Second})
		time.Sleep(2500 * time.Millisecond)
		if err := errors.Join(c.ack(held[0][:5]...), c.src.Close(t.Context())); err != nil {
			t.Error(err)
		}
		c.is("committed", c.committed(0), "2 5c")
	})
}

// As long as a member offers only the eager protocol, all stop before they join.
func TestEagerGroup(t *testing.T) {
	onGroup(t, 2, Options{}, formed{protocol: eager, share: []int{0, 1}, heedless: true}, func(t *testing.T, c *coordinator) {
		held := c.take(20)
		c.is("offers", c.offered(), cooperative+" "+eager)
		c.rebalance(formed{protocol: eager, share: []int{0, 1}, heedless: true}, formed{share: []int{0}})
		time.Sleep(5 * time.Second)
		if err := c.ack(held[0]...); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		c.is("sessions", sessions(held), "[]")
		c.is("committed", c.committed(0)+", "+c.committed(1), "2 10o, 2 0o")
		c.is("claims", c.claims(0), "[]@-1 []@-1")
		again := c.take(10)
		// The last member that knows only the eager protocol leaves: from the next
		// generation on what stays goes on.
		c.rebalance(formed{share: []int{0, 1}}, formed{share: []int{1}})
		time.Sleep(20 * time.Second)
		c.is("sessions after the second time", sessions(again), "[]")
		last := c.take(10)
		c.rebalance(formed{share: []int{1}})
		time.Sleep(10 * time.Second)
		c.is("sessions in the cooperative group", sessions(last), "[1]")
		c.is("claims then", c.claims(2), "[]@-1 [0 1]@3 [1]@4")
	})
}

// A leader of an old version that comes into a cooperative group has given away what it
// does not assign: it is lost at once, and nothing of it is committed any more.
func TestLeaderThatHeedsNoOwners(t *testing.T) {
	onGroup(t, 2, Options{}, formed{share: []int{0, 1}}, func(t *testing.T, c *coordinator) {
		held := c.take(20)
		time.Sleep(time.Second)
		c.rebalance(formed{protocol: eager, share: []int{0}, heedless: true})
		time.Sleep(4 * time.Second)
		c.is("sessions", sessions(held), "[0]")
		if err := c.ack(held[1]...); !errors.Is(err, brokers.ErrLeaseLost) {
			t.Errorf("ack of what is lost: %v", err)
		}
		if err := c.ack(held[0]...); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		c.is("committed", c.committed(0)+", "+c.committed(1), "2 10o, 1 0o")
		c.is("claims", c.claims(1), "[0 1]@1")
	})
}

// A member that the group has gone on without has lost all, whatever it is assigned.
func TestMissedGeneration(t *testing.T) {
	for name, tt := range map[string]struct {
		forget func(c *coordinator)
		claims string
	}{
		"a generation was formed without it": {func(c *coordinator) { c.rebalance(formed{share: []int{0}, skipped: 1}) }, "[0 1]@1 [0]@3"},
		"heartbeats are of an old generation": {func(c *coordinator) {
			c.rebalance(formed{share: []int{0}})
			c.refuse(kafka.IllegalGeneration)
		}, "[]@-1"},
		"it is unknown": {func(c *coordinator) { c.rebalance(formed{share: []int{0}}); c.refuse(kafka.UnknownMemberId) }, "[]@-1 []@-1"},
		"no broker answers": {func(c *coordinator) {
			answer := c.answer
			c.change(func(s *stub) {
				s.answer = func(protocol.Message, int) (protocol.Message, error) { return nil, errSilence }
			})
			c.rebalance(formed{share: []int{0}})
			time.AfterFunc(40*time.Second, func() { c.change(func(s *stub) { s.answer = answer }) })
		}, "[]@-1"},
	} {
		t.Run(name, func(t *testing.T) {
			onGroup(t, 2, Options{}, formed{share: []int{0, 1}}, func(t *testing.T, c *coordinator) {
				held := c.take(20)
				if err := c.ack(held[0][:4]...); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Second)
				tt.forget(c)
				time.Sleep(2 * time.Minute)
				c.is("sessions", sessions(held), "[]")
				if err := c.ack(held[0][4]); !errors.Is(err, brokers.ErrLeaseLost) {
					t.Errorf("ack: %v", err)
				}
				c.is("claims", c.claims(1), tt.claims)
				c.src.failures.take()
				if again := c.take(6); len(again[0]) != 6 || again[0][0].Abandoned > 0 {
					t.Errorf("received %v again, want the 6 that are not acked, and nobody lost", again)
				}
			})
		})
	}
}

// 300 partitions move at once: each ends cleanly, and the member goes on.
func TestManyPartitionsMoveAtOnce(t *testing.T) {
	all := make([]int, 300)
	for i := range all {
		all[i] = i
	}
	onGroup(t, 301, Options{}, formed{share: append([]int{300}, all...)}, func(t *testing.T, c *coordinator) {
		held := c.take(3010)
		kept := held[300]
		delete(held, 300)
		c.rebalance(formed{share: []int{300}})
		time.Sleep(4 * time.Second)
		for number, ds := range held {
			if err := c.ack(ds[:5]...); err != nil {
				t.Errorf("partition %d: %v", number, err)
			}
		}
		time.Sleep(15 * time.Second)
		c.is("sessions", sessions(held), "[]")
		for number := range all {
			if at := c.committed(number); at != "2 5c" {
				t.Errorf("partition %d: %q", number, at)
			}
		}
		if rs := c.src.all(); len(rs) != 1 || rs[0].memory.buffer != bufferBytes {
			t.Errorf("%d readers are left, of %d bytes", len(rs), rs[0].memory.buffer)
		}
		if err := c.ack(kept...); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		c.is("what stays", c.committed(300), "3 10o")
		c.is("claims", c.claims(2), "[300]@2")
	})
}

// Another worker has come with the same InstanceID: all is lost at once, and the source
// ends.
func TestInstanceIDIsTakenOver(t *testing.T) {
	onGroup(t, 2, Options{InstanceID: "worker-0"}, formed{share: []int{0, 1}}, func(t *testing.T, c *coordinator) {
		held := c.take(20)
		c.refuse(kafka.FencedInstanceID)
		time.Sleep(5 * time.Second)
		c.is("sessions", sessions(held), "[]")
		if _, err := c.src.Receive(t.Context(), 1); !errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), "worker-0") {
			t.Errorf("Receive: %v", err)
		}
		c.refuse(0)
		time.Sleep(time.Minute)
		c.is("claims", c.claims(1), "[]@-1")
	})
}

// A partition that breaks begins anew by itself: the others, and the group, go on.
func TestBrokenPartitionBeginsAnew(t *testing.T) {
	onGroup(t, 2, Options{}, formed{share: []int{0, 1}}, func(t *testing.T, c *coordinator) {
		held := c.take(20)
		c.src.all()[1].end(errors.New("the test breaks it"))
		time.Sleep(time.Second)
		c.is("sessions while it drains", sessions(held), "[0 1]")
		if err := c.ack(held[1][:9]...); err != nil {
			t.Error(err)
		}
		time.Sleep(20 * time.Second)
		c.is("sessions", sessions(held), "[0]")
		if again := c.take(1); len(again[1]) != 1 || string(again[1][0].Message.Body) != "9" || again[1][0].Abandoned > 0 {
			t.Errorf("received %v", again)
		}
		c.is("claims", c.claims(1), "")
	})
}

// A member that does not know that it is to revoke a partition, such as a static one that
// was away, does not keep it from the others for ever: the leader has the group form
// again.
func TestPartitionThatNobodyRevokes(t *testing.T) {
	topics, delays := []string{"orders", delayOfOrders}, partition{delayOfOrders, 0}
	away := &claim{topics: topics, owned: []partition{{"orders", 0}, {"orders", 1}, delays}, generation: 7}
	onGroup(t, 2, Options{RebalanceTimeout: 30 * time.Second}, formed{beside: away}, func(t *testing.T, c *coordinator) {
		time.Sleep(29 * time.Second)
		if rs := c.src.all(); len(rs) > 0 || c.claims(1) != "" {
			t.Errorf("%d partitions are read, after %q", len(rs), c.claims(1))
		}
		c.rebalance(formed{beside: &claim{topics: topics, owned: []partition{delays}, generation: 8}})
		c.mu.Lock()
		c.state = stable
		c.mu.Unlock()
		if held := c.take(10); len(held) != 1 {
			t.Errorf("received of %d partitions", len(held))
		}
	})
}

// The second step of an upgrade offers only the cooperative protocol.
func TestCooperativeOnly(t *testing.T) {
	onGroup(t, 1, Options{CooperativeOnly: true}, formed{share: []int{0}}, func(t *testing.T, c *coordinator) {
		c.take(10)
		c.is("offers", c.offered(), cooperative)
	})
}
