package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	core "k8s.io/api/core/v1"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/health"
)

// kubelet does to one pod what the kubelet of Kubernetes does: it starts the process,
// probes it, stops it, and starts it again. Its clock is that of a bubble of
// testing/synctest. It has one fault: it probes a pod on its way out, which the real
// kubelet stops doing, so that a test sees the answers.
type kubelet struct {
	incident
	spec    core.PodSpec
	broker  *memory.Broker
	began   time.Time
	deletes chan struct{} // asks for the end of the pod; another follows it

	mu       sync.Mutex
	notes    []note
	messages map[string]*message // by ID
	current  *process
	left     []memory.Record // with the broker when the pod that was deleted had ended
}

// note is something that the kubelet did or saw.
type note struct {
	at   time.Duration
	what string
}

// What the kubelet notes.
const (
	started       = "a process starts"
	exited        = "the process ends"
	killed        = "the process is killed"
	signalled     = "SIGTERM"
	nowReady      = "ready"
	nowUnready    = "not ready"
	livezFails    = "a probe of /livez fails"
	byLiveness    = "the liveness probe restarts the process"
	byStartup     = "the startup probe restarts the process"
	readyInADrain = "ready after SIGTERM"
)

// message is what became of one.
type message struct {
	topic          string
	published, end time.Duration // end is that of its first success; 0 before
	runs           int
}

func (k *kubelet) now() time.Duration { return time.Since(k.began) }

func (k *kubelet) note(what string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.notes = append(k.notes, note{k.now(), what})
}

// when returns when something was noted.
func (k *kubelet) when(what string) (times []time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range k.notes {
		if n.what == what {
			times = append(times, n.at)
		}
	}
	return times
}

// The delays before a container starts again: none, then 10 s, which doubles up to
// 5 min. Ten minutes of life begin anew.
const (
	firstBackOff = 10 * time.Second
	maxBackOff   = 5 * time.Minute
	resetBackOff = 10 * time.Minute
)

// run keeps the process running until ctx ends.
func (k *kubelet) run(ctx context.Context) {
	var processes sync.WaitGroup
	defer processes.Wait()
	backOff := time.Duration(0)
	for number := 1; ; number++ {
		x, born := k.start(&processes, number), k.now()
		replaced := k.watch(ctx, x)
		<-x.dead
		k.note(exited)
		if replaced {
			k.left = append(k.broker.Records("orders"), k.broker.Records("good")...)
		}
		if ctx.Err() != nil {
			return
		}
		if replaced || k.now()-born >= resetBackOff {
			backOff = 0
		}
		time.Sleep(backOff)
		backOff = min(max(firstBackOff, 2*backOff), maxBackOff)
	}
}

// watch probes x until it ends, and stops it if a probe fails for good, or the pod is
// deleted, which it reports.
func (k *kubelet) watch(ctx context.Context, x *process) (deleted bool) {
	c := k.spec.Containers[0]
	restart := make(chan string, 2)
	var up, hold atomic.Bool // hold ends the probes that restart
	go x.probe(c.StartupProbe, func() bool { return !up.Load() && !hold.Load() }, func(failures int) {
		if up.Store(failures == 0); failures == threshold(c.StartupProbe) {
			restart <- byStartup
		}
	})
	go x.probe(c.LivenessProbe, func() bool { return up.Load() && !hold.Load() }, func(failures int) {
		if failures > 0 {
			k.note(livezFails)
		}
		if failures == threshold(c.LivenessProbe) {
			restart <- byLiveness
		}
	})
	ready := false
	go x.probe(c.ReadinessProbe, up.Load, func(failures int) {
		switch {
		case failures == 0 && !ready:
			k.note(nowReady)
		case failures == threshold(c.ReadinessProbe) && ready:
			k.note(nowUnready)
		}
		ready = failures == 0 || ready && failures < threshold(c.ReadinessProbe)
	})
	select {
	case <-x.dead:
		return false
	case why := <-restart:
		hold.Store(true)
		k.note(why)
	case <-k.deletes:
		deleted = true
	case <-ctx.Done():
	}
	k.stop(x)
	return deleted
}

// stop gives x the grace period to end, in which preStop comes first.
func (k *kubelet) stop(x *process) {
	grace := 30 * time.Second
	if s := k.spec.TerminationGracePeriodSeconds; s != nil {
		grace = seconds(*s)
	}
	over := time.After(grace)
	if hook := k.spec.Containers[0].Lifecycle; hook != nil && hook.PreStop != nil {
		select {
		case <-time.After(seconds(hook.PreStop.Sleep.Seconds)):
		case <-x.dead:
			return
		}
	}
	k.note(signalled)
	x.terminate()
	synctest.Wait()
	if x.ask(&core.Probe{ProbeHandler: k.spec.Containers[0].ReadinessProbe.ProbeHandler}) {
		k.note(readyInADrain)
	}
	select {
	case <-x.dead:
	case <-over:
		k.note(killed)
		x.die()
	}
}

// probe asks x as often as p says until x is dead, while may says so. It tells result
// after each answer how many failures in a row there are.
func (x *process) probe(p *core.Probe, may func() bool, result func(failures int)) {
	tick := time.NewTicker(seconds(cmp.Or(p.PeriodSeconds, 10)))
	defer tick.Stop()
	for failures := 0; ; {
		if may() {
			if failures++; x.ask(p) {
				failures = 0
			}
			if x.isDead() {
				return
			}
			result(failures)
		}
		select {
		case <-x.dead:
			return
		case <-tick.C:
		}
	}
}

func threshold(p *core.Probe) int { return int(cmp.Or(p.FailureThreshold, 3)) }

func seconds[T int32 | int64](n T) time.Duration { return time.Duration(n) * time.Second }

// ask asks x once. No answer in time is a failure.
func (x *process) ask(p *core.Probe) bool {
	ctx, cancel := context.WithTimeout(context.Background(), seconds(cmp.Or(p.TimeoutSeconds, 1)))
	defer cancel()
	answer := make(chan int, 1)
	go func() {
		w := httptest.NewRecorder()
		x.probes.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, p.HTTPGet.Path, nil))
		answer <- w.Code
	}()
	select {
	case <-ctx.Done():
		return false
	case code := <-answer:
		return 200 <= code && code < 400
	}
}

// process is one life of a worker, and the broker as it sees it.
type process struct {
	*memory.Broker
	*kubelet
	number    int
	probes    http.Handler
	terminate context.CancelFunc
	once      sync.Once
	dead      chan struct{}
	source    brokers.Source // under mu
}

// start starts the program of docs/how-to/stop-cleanly.md.
func (k *kubelet) start(processes *sync.WaitGroup, number int) *process {
	k.note(started)
	x := &process{Broker: k.broker, kubelet: k, number: number, dead: make(chan struct{})}
	ctx, terminate := context.WithCancel(context.Background())
	x.terminate = terminate
	worker, err := consumer.New(x, consumer.Config{
		DeadLetter: "*-dead",
		Logger:     slog.New(slog.DiscardHandler),
		Observers:  []consumer.Observer{x},
	})
	if err != nil {
		panic(err)
	}
	worker.Handle("orders", x.handle)
	worker.Handle("good", x.handle)
	x.probes = health.Handler(worker)
	k.mu.Lock()
	k.current = x
	k.mu.Unlock()
	processes.Go(func() {
		defer x.die()
		worker.Run(ctx)
		if k.slowEnd {
			x.sleep(10 * time.Second) // all that the program gives Broker.Close
		}
	})
	return x
}

// die ends x, which can tell the broker nothing from now on.
func (x *process) die() {
	x.once.Do(func() {
		x.mu.Lock()
		source := x.source
		x.mu.Unlock()
		if source != nil {
			x.Crash(source)
		}
		close(x.dead)
		x.terminate()
	})
}

func (x *process) isDead() bool {
	select {
	case <-x.dead:
		return true
	default:
		return false
	}
}

// sleep sleeps, unless x dies.
func (x *process) sleep(d time.Duration) {
	select {
	case <-x.dead:
	case <-time.After(d):
	}
}

var errAway = errors.New("connection refused")

// Open fails while the broker is away, as those of the adapters do.
func (x *process) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	for x.silent.has(x.now()) {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(time.Second):
		}
	}
	if x.away.has(x.now()) {
		return nil, errAway
	}
	s, err := x.Broker.Open(ctx, sub)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.source = s
	return source{s, x}, err
}

func (x *process) Publish(ctx context.Context, topic string, ms ...brokers.Message) error {
	if x.isDead() {
		return brokers.ErrClosed
	}
	return x.Broker.Publish(ctx, topic, ms...)
}

// source says that there is no connection while the broker is away.
type source struct {
	brokers.Source
	x *process
}

func (s source) Connection() health.Connection {
	if s.x.away.has(s.x.now()) {
		return health.Connection{State: health.Opening, Since: s.x.began.Add(s.x.away.from)}
	}
	return health.Connection{State: health.Running, Since: s.x.began}
}

func (s source) Receive(ctx context.Context, most int) ([]*brokers.Delivery, error) {
	ds, err := s.Source.Receive(ctx, most)
	s.x.freeze("receive")
	return ds, err
}

func (s source) Close(ctx context.Context) error {
	if s.x.slowEnd {
		<-ctx.Done()
	}
	return s.Source.Close(context.WithoutCancel(ctx))
}

// Observe freezes the loop that reports acks.
func (x *process) Observe(_ context.Context, e consumer.Event) {
	if e.Kind == consumer.EventSettled && e.Action == brokers.Ack {
		x.freeze("settle")
	}
}

func (x *process) freeze(loop string) {
	if loop == x.frozen && x.number == 1 && x.now() >= trouble && !x.isDead() {
		x.note("frozen")
		<-x.dead
	}
}

// handle is the handler of both topics.
func (x *process) handle(ctx context.Context, m *brokers.Message) error {
	x.mu.Lock()
	of := x.messages[m.ID]
	of.runs++
	c := call{x, of.runs, x.now()}
	x.mu.Unlock()
	if of.topic == "orders" && x.orders != nil {
		if err := x.orders(ctx, c); err != nil {
			return err
		}
	}
	if x.isDead() {
		return context.Canceled
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if of.end == 0 {
		of.end = x.now()
	}
	return nil
}

// call is one run of the handler of orders.
type call struct {
	*process
	run   int // of this message
	began time.Duration
}

// span is a part of an incident.
type span struct{ from, to time.Duration }

func (s span) has(at time.Duration) bool { return s.from <= at && at < s.to }

// fault fails everything that workers ask of the broker while it is away.
func (k *kubelet) fault(op memory.Op) memory.Fault {
	if k.away.has(k.now()) && (op.Operation != memory.Publish || strings.HasSuffix(op.Topic, "-dead")) {
		return memory.Fault{Err: errAway}
	}
	return memory.Fault{}
}

// publish publishes a message to both topics every 5 s.
func (k *kubelet) publish(ctx context.Context) error {
	time.Sleep(time.Second)
	for n := 0; k.now() < k.lasts; n++ {
		for _, topic := range []string{"orders", "good"} {
			m := brokers.Message{ID: fmt.Sprint(topic, " ", n), Body: []byte("{}")}
			k.mu.Lock()
			k.messages[m.ID] = &message{topic: topic, published: k.now()}
			k.mu.Unlock()
			if err := k.broker.Publish(ctx, topic, m); err != nil {
				return err
			}
		}
		time.Sleep(5 * time.Second)
	}
	return nil
}
