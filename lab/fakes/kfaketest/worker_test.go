package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/retry"
)

const (
	group  = "billing"
	limit  = 30 * time.Second
	delays = "redrive.delay.v1." + group + ".1m"
)

// world is a cluster in memory, and what workers on it have handled and logged.
type world struct {
	*testing.T
	cluster *kfake.Cluster

	mu     sync.Mutex
	runs   map[string]int // by body
	logged bytes.Buffer
}

func newWorld(t *testing.T, options ...kfake.Opt) *world {
	t.Helper()
	options = append([]kfake.Opt{kfake.NumBrokers(3), kfake.GroupMinSessionTimeout(500 * time.Millisecond)}, options...)
	cluster, err := kfake.NewCluster(options...)
	must(t, err)
	t.Cleanup(cluster.Close)
	return &world{T: t, cluster: cluster, runs: make(map[string]int)}
}

func (w *world) create(topic string) {
	w.Helper()
	must(w, w.cluster.CreateTopic(topic, 4, nil))
}

func (w *world) broker(change ...func(*kafka.Options)) *kafka.Broker {
	w.Helper()
	o := kafka.Options{Brokers: w.cluster.ListenAddrs(), Group: group, SessionTimeout: 2 * time.Second, RebalanceTimeout: 3 * time.Second, CallTimeout: 5 * time.Second}
	for _, f := range change {
		f(&o)
	}
	b, err := kafka.New(o)
	must(w, err)
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		b.Close(ctx)
	})
	return b
}

// Write takes what workers log.
func (w *world) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.logged.Write(p)
}

func (w *world) log() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.logged.String()
}

// handle fails once for bodies that begin with "retry", and for good for those
// that begin with "dead".
func (w *world) handle(_ context.Context, m *brokers.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	body := string(m.Body)
	w.runs[body]++
	switch {
	case strings.HasPrefix(body, "dead"):
		return classify.Permanent(errors.New("never"))
	case strings.HasPrefix(body, "retry") && w.runs[body] == 1:
		return classify.Transient(errors.New("busy"))
	}
	return nil
}

func (w *world) ran(body string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs[body]
}

func (w *world) succeeded(body string) bool {
	if strings.HasPrefix(body, "retry") {
		return w.ran(body) > 1
	}
	return w.ran(body) > 0
}

// run works on topics until stop is called, which returns what Run does, or
// until Run ends by itself.
func (w *world) run(b *kafka.Broker, topics ...string) (stop func() error, ended <-chan struct{}) {
	w.Helper()
	c, err := consumer.New(b, consumer.Config{
		DeadLetter:   "*-dead",
		HoldLimit:    -1, // all retries wait in the broker
		DrainTimeout: time.Second,
		Retry:        retry.Policy{Backoff: retry.Backoff{Base: 100 * time.Millisecond}},
		Logger:       slog.New(slog.NewTextHandler(w, nil)),
	})
	must(w, err)
	for _, topic := range topics {
		c.Handle(topic, w.handle)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { err = c.Run(ctx); close(done) }()
	stop = func() error { cancel(); <-done; return err }
	w.Cleanup(func() { stop() })
	return stop, done
}

func (w *world) publish(b *kafka.Broker, topic string, bodies ...string) {
	w.Helper()
	var msgs []brokers.Message
	for _, body := range bodies {
		msgs = append(msgs, brokers.Message{Key: body, Body: []byte(body)})
	}
	must(w, b.Publish(w.Context(), topic, msgs...))
}

func (w *world) until(what string, ok func() bool) {
	w.Helper()
	for deadline := time.Now().Add(limit); !ok(); <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatalf("waited in vain for %s:\n%s", what, w.log())
		}
	}
}

// all says whether all bodies are handled.
func (w *world) all(bodies []string) func() bool {
	return func() bool { return !slices.ContainsFunc(bodies, func(body string) bool { return !w.succeeded(body) }) }
}

// served publishes messages to orders, and waits until they are handled.
func (w *world) served(from *kafka.Broker, round string) {
	w.Helper()
	var bodies []string
	for i := range 60 {
		bodies = append(bodies, fmt.Sprint(round, " ", i))
	}
	w.publish(from, "orders", bodies...)
	w.until(round, w.all(bodies))
}

// stored counts the records of a topic.
func (w *world) stored(topic string) (n int64) {
	for _, p := range w.cluster.PartitionInfos(topic) {
		n += p.HighWatermark - p.LogStartOffset
	}
	return n
}

// Whatever single calls come to, all messages are handled, and committed.
func TestFaultsLoseNothing(t *testing.T) {
	t.Parallel()
	const each = 40
	w := newWorld(t)
	w.create("orders")
	from := w.broker()
	stop, _ := w.run(w.broker(), "orders")
	w.publish(from, "orders", "first")
	w.until("the first message", func() bool { return w.succeeded("first") })

	rejoin := kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Group: group, TopLevel: true, Err: kerr.RebalanceInProgress}
	forget := kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Group: group, TopLevel: true, Err: kerr.UnknownMemberID} // all partitions are lost
	commits := func(err *kerr.Error) kfake.Fault {
		return kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Group: group, Err: err, Count: 3}
	}
	fetches := func(err *kerr.Error) kfake.Fault {
		return kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "orders", Err: err, Count: 3}
	}
	copies := func(err *kerr.Error) kfake.Fault {
		return kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: delays, Err: err, Count: 3}
	}
	for _, tt := range []struct {
		name   string
		change func()
		faults []kfake.Fault
	}{
		{"commit fenced by its generation", nil, []kfake.Fault{commits(kerr.IllegalGeneration)}},
		{"commit of an unknown member", nil, []kfake.Fault{commits(kerr.UnknownMemberID)}},
		{"commit during a rebalance", nil, []kfake.Fault{commits(kerr.RebalanceInProgress)}},
		{"commit to another coordinator", nil, []kfake.Fault{commits(kerr.NotCoordinator)}},
		{"commit while the coordinator loads", nil, []kfake.Fault{commits(kerr.CoordinatorLoadInProgress)}},
		{"fetch from another leader", nil, []kfake.Fault{fetches(kerr.NotLeaderForPartition)}},
		{"fetch of an old epoch", nil, []kfake.Fault{fetches(kerr.FencedLeaderEpoch)}},
		{"fetch behind what the leader shows", nil, []kfake.Fault{fetches(kerr.OffsetNotAvailable)}},
		{"fetch out of range", nil, []kfake.Fault{fetches(kerr.OffsetOutOfRange)}},
		{"fetch from a broken disk", nil, []kfake.Fault{fetches(kerr.KafkaStorageError)}},
		{"copy to another leader", nil, []kfake.Fault{copies(kerr.NotLeaderForPartition)}},
		{"copy with too few replicas", nil, []kfake.Fault{copies(kerr.NotEnoughReplicas)}},
		{"copy with too few replicas after it", nil, []kfake.Fault{copies(kerr.NotEnoughReplicasAfterAppend)}},
		{"copy not confirmed in time", nil, []kfake.Fault{copies(kerr.RequestTimedOut)}},
		{"rebalance", nil, []kfake.Fault{rejoin}},
		{"sync refused", nil, []kfake.Fault{rejoin, {Keys: []kmsg.Key{kmsg.SyncGroup}, Group: group, TopLevel: true, Err: kerr.UnknownMemberID}}},
		{"offsets of the group not loaded", nil, []kfake.Fault{forget, {Keys: []kmsg.Key{kmsg.OffsetFetch}, Group: group, TopLevel: true, Err: kerr.CoordinatorLoadInProgress, Count: 2}}},
		{"offsets of another leader", nil, []kfake.Fault{forget, {Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: "orders", Err: kerr.NotLeaderForPartition, Count: 2}}},
		{"all leaders move", w.cluster.ShufflePartitionLeaders, nil},
		{"coordinators move", w.cluster.RehashCoordinators, nil},
	} {
		begun := time.Now()
		fault := w.cluster.Fault(tt.faults...)
		if tt.change != nil {
			tt.change()
		}
		var bodies []string
		for i := range each {
			bodies = append(bodies, fmt.Sprint([]string{"", "retry "}[i%2], tt.name, " ", i))
		}
		w.publish(from, "orders", bodies...)
		w.until(tt.name, func() bool {
			return fault.Hits() >= len(tt.faults) && !slices.ContainsFunc(bodies, func(body string) bool { return !w.succeeded(body) })
		})
		fault.Remove()
		t.Logf("%s: %v", tt.name, time.Since(begun).Round(time.Millisecond))
	}
	if err := stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	stored, committed := w.stored("orders"), int64(0)
	for _, c := range w.cluster.GroupInfo(group).Commits["orders"] {
		committed += c.Offset
	}
	if committed != stored {
		t.Errorf("%d of %d messages are committed in the end", committed, stored)
	}
	if text := w.log(); strings.Contains(text, "were deleted") || strings.Contains(text, "made anew") {
		t.Errorf("a false alarm:\n%s", text)
	}
}

// The rights in the page are enough, and each of them is needed.
func TestRightsOfAWorker(t *testing.T) {
	rights := rightsOf(t, "../../../docs/how-to/set-up-topics-on-kafka.md")
	if len(rights) < 10 {
		t.Fatalf("the page grants %d rights: %+v", len(rights), rights)
	}
	for without := -1; without < len(rights); without++ {
		granted, name := rights, "all"
		if without >= 0 {
			granted = slices.Delete(slices.Clone(rights), without, without+1)
			name = fmt.Sprintf("without %v on %s %s", rights[without].Operation, rights[without].Resource, rights[without].Name)
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser("PLAIN", "admin", "admin"), kfake.User("PLAIN", group, "secret", granted...))
			w.create("orders")
			login := func(user, password string) func(*kafka.Options) {
				return func(o *kafka.Options) { o.SASL = plain.Mechanism{Username: user, Password: password} }
			}
			w.publish(w.broker(login("admin", "admin")), "orders", "once", "retry", "dead")
			stop, ended := w.run(w.broker(login(group, "secret")), "orders")
			if without < 0 {
				w.until("all messages", func() bool { return w.ran("once") == 1 && w.ran("retry") == 2 && w.stored("orders-dead") == 1 })
				if err := stop(); err != nil {
					t.Error(err)
				}
				return
			}
			w.until("an error about the right", func() bool { return isClosed(ended) || strings.Contains(w.log(), "kafka-acls.sh --add") })
			if err := stop(); err != nil && (!errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), "kafka-")) {
				t.Errorf("Run: %v", err)
			}
		})
	}
}

// A worker without any right is told of all that it lacks at once: of nothing that its
// policy does not need, and in commands. After these it works.
func TestRefusedWithAllThatIsMissing(t *testing.T) {
	t.Parallel()
	login := func(user, password string) func(*kafka.Options) {
		return func(o *kafka.Options) {
			o.SASL, o.Verify = plain.Mechanism{Username: user, Password: password}, user == group
		}
	}
	server := []kfake.Opt{kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser("PLAIN", "admin", "admin")}
	sub := brokers.Subscription{Topics: []string{"orders"}, DeadLetters: map[string]string{"orders": "orders-dead"}, MaxDelay: 15 * time.Minute, MaxAttempts: 10}
	w := newWorld(t, append(server, kfake.User("PLAIN", group, "secret"))...)
	w.create("orders")
	for _, verify := range []bool{true, false} {
		b := w.broker(login(group, "secret"), func(o *kafka.Options) { o.Verify = verify })
		_, err := b.Open(t.Context(), sub)
		refused, ok := errors.AsType[*brokers.TopologyError](err)
		if !ok || !errors.Is(err, brokers.ErrNotFound) {
			t.Fatalf("Open: %v", err)
		}
		if found, err := b.Inspect(t.Context(), sub); err != nil || !slices.Equal(found, refused.Findings) {
			t.Errorf("Inspect: %v, %v", found, err)
		}
		var commands []string
		named := map[string]bool{}
		for _, f := range refused.Findings {
			named[f.Topic] = true
			commands = append(commands, f.Fix)
		}
		want := map[string]bool{"orders": true, "orders-dead": true, delays: true, "redrive.delay.v1." + group + ".15m": true, group: true}
		if !maps.Equal(named, want) {
			t.Errorf("it names %v, want %v:\n%v", named, want, err)
		}
		if infos := w.cluster.TopicInfo("orders-dead"); infos != nil {
			t.Error("a refused Open has created a topic")
		}
		able := newWorld(t, append(server, kfake.User("PLAIN", group, "secret", rightsIn(strings.Join(commands, "\n"))...))...)
		able.create("orders")
		for _, command := range commands {
			able.obey(command)
		}
		able.publish(able.broker(login("admin", "admin")), "orders", "once", "retry", "dead")
		stop, _ := able.run(able.broker(login(group, "secret")), "orders")
		able.until("all messages", func() bool { return able.ran("once") == 1 && able.ran("retry") == 2 && able.stored("orders-dead") == 1 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

// obey does what a kafka-topics.sh --create asks for.
func (w *world) obey(command string) {
	w.Helper()
	arguments, ok := strings.CutPrefix(command, "kafka-topics.sh --create --if-not-exists --topic ")
	if !ok {
		return
	}
	words := strings.Fields(arguments)
	partitions := 1
	settings := map[string]string{}
	for i := 1; i+1 < len(words); i += 2 {
		switch name, value, _ := strings.Cut(words[i+1], "="); words[i] {
		case "--partitions":
			partitions, _ = strconv.Atoi(name)
		case "--config":
			settings[name] = value
		}
	}
	if err := w.cluster.CreateTopic(words[0], int32(partitions), settings); err != nil && w.cluster.TopicInfo(words[0]) == nil {
		w.Errorf("%s: %v", command, err)
	}
}

// A broker that waits for a login says nothing: that it may is in the error.
func TestForgottenLogin(t *testing.T) {
	t.Parallel()
	w := newWorld(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "admin", "admin"))
	_, err := w.broker().Open(t.Context(), brokers.Subscription{Topics: []string{"orders"}, MaxDelay: time.Minute})
	if err == nil || !strings.Contains(err.Error(), "set Options.SASL") || strings.Contains(err.Error(), "delay") {
		t.Errorf("Open: %v", err)
	}
}

// A tool that sends dead messages back needs the right to write to the delay topics,
// as the page says, and no other.
func TestRightsOfATool(t *testing.T) {
	t.Parallel()
	write := kfake.ACL{Resource: kmsg.ACLResourceTypeTopic, Name: "redrive.delay.v1." + group + ".", Pattern: kmsg.ACLResourcePatternTypePrefixed, Operation: kmsg.ACLOperationWrite, Allow: true}
	w := newWorld(t, kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser("PLAIN", "admin", "admin"),
		kfake.User("PLAIN", "tool", "secret", write), kfake.User("PLAIN", "nobody", "secret"))
	w.create(delays)
	for user, want := range map[string]error{"tool": nil, "nobody": brokers.ErrMisconfigured} {
		b := w.broker(func(o *kafka.Options) { o.SASL = plain.Mechanism{Username: user, Password: "secret"} })
		if err := b.SendBack(t.Context(), group, "orders", brokers.Item{Message: &brokers.Message{Body: []byte("a")}}); !errors.Is(err, want) {
			t.Errorf("%s returns a message: %v, want %v", user, err, want)
		}
	}
	w.until("the message", func() bool { return w.stored(delays) == 1 })
}

// Who only reads needs the right to read, and is told at Open of one that is missing.
func TestRightsOfAReader(t *testing.T) {
	t.Parallel()
	read := func(resource kmsg.ACLResourceType, name string) kfake.ACL {
		return kfake.ACL{Resource: resource, Name: name, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: kmsg.ACLOperationRead, Allow: true}
	}
	topic, group := read(kmsg.ACLResourceTypeTopic, "letters"), read(kmsg.ACLResourceTypeGroup, "readers of letters")
	w := newWorld(t, kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser("PLAIN", "admin", "admin"),
		kfake.User("PLAIN", "reader", "secret", topic, group), kfake.User("PLAIN", "no-topic", "secret", group), kfake.User("PLAIN", "no-group", "secret", topic))
	w.create("letters")
	login := func(user, password string) func(*kafka.Options) {
		return func(o *kafka.Options) { o.SASL = plain.Mechanism{Username: user, Password: password} }
	}
	w.publish(w.broker(login("admin", "admin")), "letters", "a")
	sub := brokers.Subscription{Topics: []string{"letters"}, Group: group.Name, InFlight: 10}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for user, says := range map[string]string{"no-topic": `"letters"`, "no-group": "--operation Read --group 'readers of letters'"} {
		if _, err := w.broker(login(user, "secret")).Open(ctx, sub); !errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: Open: %v, want ErrMisconfigured that says %q", user, err, says)
		}
	}
	src, err := w.broker(login("reader", "secret")).Open(ctx, sub)
	must(t, err)
	ds, err := src.Receive(ctx, 10)
	if err != nil || len(ds) != 1 {
		t.Fatalf("Receive: %d deliveries, %v", len(ds), err)
	}
	if errs := src.Settle(ctx, []brokers.Settlement{{Delivery: ds[0]}}); errs != nil {
		t.Error(errs)
	}
	if err := src.Close(ctx); err != nil {
		t.Error(err)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// rightsOf reads the commands in a page that grant rights.
func rightsOf(t *testing.T, page string) (rights []kfake.ACL) {
	t.Helper()
	text, err := os.ReadFile(page)
	must(t, err)
	return rightsIn(string(text))
}

// rightsIn reads the commands in text that grant rights.
func rightsIn(text string) (rights []kfake.ACL) {
	operations := map[string]kmsg.ACLOperation{
		"Read": kmsg.ACLOperationRead, "Write": kmsg.ACLOperationWrite, "Create": kmsg.ACLOperationCreate, "DescribeConfigs": kmsg.ACLOperationDescribeConfigs,
	}
	for line := range strings.Lines(text) {
		arguments, ok := strings.CutPrefix(line, "kafka-acls.sh --add ")
		if !ok {
			continue
		}
		right := kfake.ACL{Pattern: kmsg.ACLResourcePatternTypeLiteral, Allow: true}
		var wanted []kmsg.ACLOperation
		words := strings.Fields(arguments)
		for i := 0; i+1 < len(words); i += 2 {
			switch words[i] {
			case "--operation":
				wanted = append(wanted, operations[words[i+1]])
			case "--topic":
				right.Resource, right.Name = kmsg.ACLResourceTypeTopic, words[i+1]
			case "--group":
				right.Resource, right.Name = kmsg.ACLResourceTypeGroup, words[i+1]
			case "--resource-pattern-type":
				right.Pattern = kmsg.ACLResourcePatternTypePrefixed
			}
		}
		for _, right.Operation = range wanted {
			rights = append(rights, right)
		}
	}
	return rights
}

// A group that changes while a worker gets its share is no error.
func TestRegroupingIsNoError(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create("orders")
	b := w.broker()
	w.publish(b, "orders", "a")
	var refused atomic.Int32
	w.cluster.ControlKey(int16(kmsg.OffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
		w.cluster.KeepControl()
		if refused.Add(1) > 3 {
			return nil, nil, false
		}
		res := req.ResponseKind().(*kmsg.OffsetCommitResponse)
		for _, topic := range req.(*kmsg.OffsetCommitRequest).Topics {
			out := kmsg.OffsetCommitResponseTopic{Topic: topic.Topic}
			for _, p := range topic.Partitions {
				out.Partitions = append(out.Partitions, kmsg.OffsetCommitResponseTopicPartition{Partition: p.Partition, ErrorCode: kerr.RebalanceInProgress.Code})
			}
			res.Topics = append(res.Topics, out)
		}
		return res, nil, true
	})
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	src, err := b.Open(ctx, brokers.Subscription{Topics: []string{"orders"}, MaxDelay: time.Minute})
	must(t, err)
	if ds, err := src.Receive(ctx, 1); err != nil || len(ds) != 1 || refused.Load() <= 3 {
		t.Errorf("Receive: %d messages, %v, after %d commits", len(ds), err, refused.Load())
	}
}

// A topic that not every broker knows of yet is there.
func TestTopicMadeAMomentAgo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create("orders")
	var asked atomic.Int32
	w.cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		w.cluster.KeepControl()
		m := req.(*kmsg.MetadataRequest)
		if !m.IncludeTopicAuthorizedOperations || asked.Add(1) > 2 {
			return nil, nil, false
		}
		res := req.ResponseKind().(*kmsg.MetadataResponse)
		for _, topic := range m.Topics {
			res.Topics = append(res.Topics, kmsg.MetadataResponseTopic{Topic: topic.Topic, ErrorCode: kerr.UnknownTopicOrPartition.Code})
		}
		return res, nil, true
	})
	if _, err := w.broker().Open(t.Context(), brokers.Subscription{Topics: []string{"orders"}, MaxDelay: time.Minute}); err != nil || asked.Load() < 3 {
		t.Errorf("Open, after asking %d times: %v", asked.Load(), err)
	}
}

// A program publishes to a topic that the other brokers do not know of yet, and
// its message is stored once. The program can publish to another topic
// meanwhile.
func TestPublishToATopicMadeAMomentAgo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create("refunds")
	b := w.broker()
	w.publish(b, "refunds", "before") // the program knows the existing topics
	w.create("orders")
	var hidden atomic.Bool
	var asked atomic.Int32
	hidden.Store(true)
	w.cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		w.cluster.KeepControl()
		m := req.(*kmsg.MetadataRequest)
		if !hidden.Load() || !slices.ContainsFunc(m.Topics, func(t kmsg.MetadataRequestTopic) bool { return t.Topic != nil && *t.Topic == "orders" }) {
			return nil, nil, false
		}
		asked.Add(1)
		res := req.ResponseKind().(*kmsg.MetadataResponse)
		for _, topic := range m.Topics {
			res.Topics = append(res.Topics, kmsg.MetadataResponseTopic{Topic: topic.Topic, ErrorCode: kerr.UnknownTopicOrPartition.Code})
		}
		return res, nil, true
	})
	published := make(chan error, 1)
	go func() { published <- b.Publish(t.Context(), "orders", brokers.Message{Key: "a", Body: []byte("a")}) }()
	w.until("a look at the topic", func() bool { return asked.Load() > 0 || len(published) > 0 })
	w.publish(b, "refunds", "beside")
	hidden.Store(false)
	if err := <-published; err != nil || w.stored("orders") != 1 || w.stored("refunds") != 2 {
		t.Errorf("Publish: %v; %d and %d messages are stored, want 1 and 2", err, w.stored("orders"), w.stored("refunds"))
	}
}

// A dead-letter topic is deleted while the worker runs. Only the dead letters
// for that topic wait, and no other message. They are stored when the topic
// exists again.
func TestDeletedDeadLetterTopicHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, topic := range []string{"orders", "orders-dead", "refunds"} {
		w.create(topic)
	}
	b := w.broker()
	w.run(w.broker(), "orders", "refunds")
	w.publish(b, "orders", "dead a")
	w.until("a dead letter", func() bool { return w.stored("orders-dead") == 1 })
	must(t, w.cluster.DeleteTopic("orders-dead"))
	w.publish(b, "orders", "dead b")
	w.until("a dead letter that has no topic", func() bool { return w.ran("dead b") == 1 })
	w.publish(b, "orders", "good", "retry")
	w.publish(b, "refunds", "dead refund", "retry refund")
	w.until("all others", func() bool {
		return w.succeeded("good") && w.succeeded("retry") && w.succeeded("retry refund") && w.stored("refunds-dead") == 1
	})
	w.until("an error", func() bool { return strings.Contains(w.log(), `dead letter to \"orders-dead\"`) })
	w.create("orders-dead")
	w.until("the dead letter", func() bool { return w.stored("orders-dead") == 1 })
	if n := w.ran("dead b"); n != 1 {
		t.Errorf("the dead letter's message ran %d times, want once", n)
	}
}

// A broker that makes topics when they are asked for gets none made by a worker: not
// when it starts, and not when the group changes after one was deleted.
func TestTopicsThatMakeThemselves(t *testing.T) {
	t.Parallel()
	w := newWorld(t, kfake.AllowAutoTopicCreation(), kfake.DefaultNumPartitions(2))
	w.create("orders")
	stop, ended := w.run(w.broker(), "orders", "misspelled")
	w.until("the end of Run", func() bool { return isClosed(ended) })
	if err := stop(); !errors.Is(err, brokers.ErrMisconfigured) || !strings.Contains(err.Error(), `correct the name, or create it. To mend it: kafka-topics.sh --create --if-not-exists --topic misspelled`) {
		t.Errorf("Run with a topic that is missing: %v", err)
	}
	b := w.broker()
	if err := b.Publish(t.Context(), "nowhere", brokers.Message{}); !errors.Is(err, brokers.ErrMisconfigured) {
		t.Errorf("publish to a topic that is missing: %v", err)
	}
	if err := b.SendBack(t.Context(), group, "orders", brokers.Item{Message: &brokers.Message{}}); !errors.Is(err, brokers.ErrMisconfigured) {
		t.Errorf("return to a group that has no delay topic: %v", err)
	}
	for _, topic := range []string{"misspelled", "nowhere", delays} {
		if w.cluster.TopicInfo(topic) != nil {
			t.Errorf("the topic %q was made", topic)
		}
	}
	w.create("refunds")
	w.run(w.broker(), "orders", "refunds")
	leave, _ := w.run(w.broker(), "orders", "refunds")
	stable, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if _, err := w.cluster.WaitGroupStable(stable, group, 2); err != nil {
		t.Fatal(err)
	}
	w.publish(b, "orders", "before")
	w.until("a message", func() bool { return w.succeeded("before") })
	must(t, w.cluster.DeleteTopic("orders"))
	w.until("an error", func() bool { return strings.Contains(w.log(), "create the topic, or correct its name") })
	if err := leave(); err != nil {
		t.Error(err)
	}
	w.publish(b, "refunds", "of the other topic")
	w.until("the other topic", func() bool { return w.succeeded("of the other topic") })
	if w.cluster.TopicInfo("orders") != nil {
		t.Error("the topic that was deleted was made anew")
	}
	w.create("orders")
	w.publish(b, "orders", "after", "retry after")
	w.until("the new topic", func() bool { return w.succeeded("after") && w.succeeded("retry after") })
}

// must fails the test at once if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
