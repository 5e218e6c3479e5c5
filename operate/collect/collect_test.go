package collect_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/operate/collect"
	"github.com/redrive-go/redrive/operate/store"
	"github.com/redrive-go/redrive/settings"
)

func TestCollect(t *testing.T) {
	fault := func(op memory.Op) memory.Fault {
		if op.Operation == memory.Deliver && op.ID == "torn" {
			return memory.Fault{Unreadable: errors.New("its headers are torn")}
		}
		return memory.Fault{}
	}
	inWorld(t, fault, func(t *testing.T, w *world) {
		w.publish(letter(1))
		w.publish(
			brokers.Message{ID: "torn", Body: []byte("\x00\xff")},
			brokers.Message{ID: "receipt", Headers: brokers.Headers{{Name: "redrive-receipt-outcome", Value: "handled"}}},
			brokers.Message{ID: "poisoned", Headers: brokers.Headers{{Name: "reason_poisoned", Value: "boom"}, {Name: "topic_poisoned", Value: "orders"}}},
			brokers.Message{},
		)
		began := time.Now()
		got := w.collect(collect.Config{})
		if want := (collect.Result{Received: 5, Added: 5}); got != want {
			t.Errorf("Run = %+v, want %+v", got, want)
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("it ended %v after the last letter, want 2 s", took)
		}
		if n := w.broker.Len(dead); n != 0 {
			t.Errorf("%d letters are left in the broker", n)
		}
		var rows []string
		for _, l := range slices.Backward(w.stored()) {
			rows = append(rows, strings.Join([]string{l.Broker, l.Source, l.Topic, l.Format, l.Reason, l.ErrorText}, " "))
		}
		slices.Sort(rows)
		want := []string{
			"main orders.dead  raw  ", // a receipt is none of ours
			"main orders.dead  raw  ",
			"main orders.dead  unreadable unreadable its headers are torn",
			"main orders.dead orders redrive exhausted no route to host",
			"main orders.dead orders watermill  boom",
		}
		if !slices.Equal(rows, want) {
			t.Errorf("the letters are\n%q\nwant\n%q", rows, want)
		}
		l, err := w.file.Letters(t.Context(), store.Filter{MessageID: "torn"}, store.Page{})
		if err != nil || len(l.Letters) != 1 {
			t.Fatalf("Letters = %+v, %v", l, err)
		}
		if raw, _, err := w.file.Content(t.Context(), l.Letters[0].ID); err != nil || string(raw.Body) != "\x00\xff" {
			t.Errorf("Content = %+v, %v, want what the adapter could read", raw, err)
		}
	})
}

// TestEmpty ends by itself, later than after a letter: a broker that has just been
// connected may take a moment.
func TestEmpty(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		began := time.Now()
		if got := w.collect(collect.Config{}); got != (collect.Result{}) || time.Since(began) != 10*time.Second {
			t.Errorf("Run = %+v after %v, want nothing after 10 s", got, time.Since(began))
		}
	})
}

func TestNewReportsAllFaults(t *testing.T) {
	_, err := collect.New(collect.Config{Limits: collect.Limits{FreeDisk: 1, Letters: -1}, Idle: -1})
	for _, field := range []string{"Store", "Source", "Broker", "Limits.FreeDisk", "Limits.Letters", "Idle"} {
		if err == nil || !strings.Contains(err.Error(), "collect: Config."+field+": ") {
			t.Errorf("New: %v, want the fault of %s", err, field)
		}
	}
	if _, ok := errors.AsType[*settings.Error](err); !ok {
		t.Errorf("New: %T, want a *settings.Error in it", err)
	}
}

// TestNextIsReceivedMeanwhile holds a commit until the next letters are received.
func TestNextIsReceivedMeanwhile(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.publish(letters(0, 1500)...)
		c := w.collector(collect.Config{})
		var sizes []int
		w.store.collect = func(_ context.Context, batch []store.Collected, do func() (int, error)) (int, error) {
			if sizes = append(sizes, len(batch)); len(sizes) < 3 {
				want := int64(500 * (len(sizes) + 1))
				for c.Status().Received < want {
					time.Sleep(time.Millisecond)
				}
				time.Sleep(time.Second)
				if got := c.Status().Received; got != want {
					t.Errorf("%d letters were received during commit %d, want one batch ahead: %d", got, len(sizes), want)
				}
			}
			return do()
		}
		if _, err := c.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if want := []int{500, 500, 500}; !slices.Equal(sizes, want) {
			t.Errorf("commits of %d letters, want %d", sizes, want)
		}
		w.once(1500)
	})
}

// TestLargeLetters commits at most 8 MiB at once, and more only where one letter
// has more.
func TestLargeLetters(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		for i, mib := range []int{3, 3, 3, 9, 1} {
			m := letter(i)
			m.Body = make([]byte, mib<<20)
			w.publish(m)
		}
		var sizes []int
		w.store.collect = func(_ context.Context, batch []store.Collected, do func() (int, error)) (int, error) {
			sizes = append(sizes, len(batch))
			return do()
		}
		w.collect(collect.Config{})
		if want := []int{2, 1, 1, 1}; !slices.Equal(sizes, want) {
			t.Errorf("commits of %d letters, want %d", sizes, want)
		}
		w.once(5)
	})
}

// onLog makes the deliveries of a source those of a log.
type onLog struct{ brokers.Source }

func (l onLog) Receive(ctx context.Context, max int) ([]*brokers.Delivery, error) {
	ds, err := l.Source.Receive(ctx, max)
	for _, d := range ds {
		m := d.Meta()
		m.Origin = brokers.Headers{{Name: "topic", Value: dead}, {Name: "partition", Value: "3"}, {Name: "offset", Value: string(d.Message.Body)}}
		d.Carried = &m
	}
	return ds, err
}

// TestLog knows a letter of a log by its place, whoever wrote it.
func TestLog(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		place := func(offset string) brokers.Message { return brokers.Message{ID: "raw", Body: []byte(offset)} }
		w.publish(place("7"), place("8"), place("7"))
		source := onLog{w.source()}
		got := w.collect(collect.Config{Source: source, Log: true})
		if want := (collect.Result{Received: 3, Added: 2, Known: 1}); got != want {
			t.Errorf("Run = %+v, want %+v", got, want)
		}
		var places []string
		for _, l := range w.stored() {
			places = append(places, l.Position)
		}
		if slices.Sort(places); !slices.Equal(places, []string{"3/7", "3/8"}) {
			t.Errorf("the places are %q", places)
		}
		w.publish(place("7"))
		if got := w.collect(collect.Config{Source: source}); got.Added != 1 {
			t.Errorf("Run on a queue = %+v: a letter may claim any place there", got)
		}
	})
}

// TestTwoCollectors has two processes, as it were, collect from one queue into one
// store.
func TestTwoCollectors(t *testing.T) {
	fault := func(op memory.Op) memory.Fault {
		return memory.Fault{Duplicate: op.Operation == memory.Deliver && op.Nth == 1 && strings.HasSuffix(op.ID, "7")}
	}
	inWorld(t, fault, func(t *testing.T, w *world) {
		w.publish(letters(0, 3000)...)
		_, stopOne := w.follow(collect.Config{})
		_, stopOther := w.follow(collect.Config{})
		time.Sleep(10 * time.Minute)
		one, other := stopOne(), stopOther()
		w.once(3000)
		if one.Added == 0 || other.Added == 0 || one.Added+other.Added != 3000 || one.Known+other.Known == 0 {
			t.Errorf("they collected %+v and %+v", one, other)
		}
	})
}

// TestStopped stops it while a commit is under way: what is committed is acked, and
// the rest released, not lost.
func TestStopped(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.publish(letters(0, 1200)...)
		begun, goOn := make(chan bool, 10), make(chan bool)
		w.store.collect = func(_ context.Context, _ []store.Collected, do func() (int, error)) (int, error) {
			begun <- true
			<-goOn
			return do()
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan collect.Result)
		c := w.collector(collect.Config{})
		go func() {
			result, err := c.Run(ctx)
			if err != nil {
				t.Errorf("Run = %v", err)
			}
			ended <- result
		}()
		<-begun
		synctest.Wait() // the next batch is in hand
		cancel()
		close(goOn)
		if got := <-ended; got.Added != 500 || got.Received != 1000 {
			t.Errorf("Run = %+v, want what was being committed", got)
		}
		if s := w.broker.Stats(dead); s.Ready != 700 || s.InFlight != 0 {
			t.Errorf("the broker has %+v, want 700 ready", s)
		}
		w.split(1200, 700)
	})
}

// TestStoppedWhileTheStoreHangs does not wait for it for long.
func TestStoppedWhileTheStoreHangs(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.publish(letter(1))
		w.store.collect = func(ctx context.Context, _ []store.Collected, _ func() (int, error)) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}
		_, stop := w.follow(collect.Config{})
		synctest.Wait()
		began := time.Now()
		stop()
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("it took %v to stop", took)
		}
		w.split(1, 1)
	})
}
