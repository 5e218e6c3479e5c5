package sqs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// brought is what a poll brings: large messages and small ones by turns, two of each
// group.
func brought(n, size int) []record {
	records := make([]record, n)
	for i := range records {
		body := make([]byte, 1+(size-1)*((i+1)%2))
		records[i] = record{id: fmt.Sprint(i), group: fmt.Sprint(i / 2), handle: fmt.Sprint(i), message: brokers.Message{Body: body}}
	}
	return records
}

// What has no room goes back at once, and nothing else but what must come after it.
func TestLargeMessagesThatHaveNoRoomGoBack(t *testing.T) {
	for topic, want := range map[string]int{"jobs": 20, "jobs.fifo": 40} {
		playAs(t, topic, topic, Options{}, func(s *scene) {
			src := s.open()
			src.mu.Lock()
			f := src.feeds[0]
			records := brought(100, mostBuffered/30-smallMessage)
			now := time.Now()
			back := src.store(f, records, now, now)
			if len(back) != want || back[0].record.id != "60" || len(f.items) != 100-want {
				t.Errorf("%d go back, of which %v is the first, and %d wait; want %d, 60 and %d", len(back), back[0].record.id, len(f.items), want, 100-want)
			}
			if f.fits(10) != 0 || f.bytes > mostBuffered {
				t.Errorf("%d bytes wait, and there is room for %d more messages", f.bytes, f.fits(10))
			}
			removed := f.remove(func(t *token) bool { return t.seq <= 10 })
			if n := f.fits(10); n != 5 {
				t.Errorf("without %d of them there is room for %d messages, want 5", len(removed), n)
			}
			f.take(100, now)
			f.remove(func(*token) bool { return true })
			if f.bytes != 0 || f.fits(10) != 10 {
				t.Errorf("nothing waits, and that takes %d bytes, with room for %d messages", f.bytes, f.fits(10))
			}
			src.mu.Unlock()
		})
	}
}

// One message at a time comes, however large and however many queues share the room.
// What was large is forgotten.
func TestRoomOfManyQueues(t *testing.T) {
	s := &source{feeds: make([]*feed, 100)}
	f := &feed{source: s}
	f.weigh(brought(1, largest))
	if n := f.fits(10); n != 0 || f.isFull(largest) {
		t.Errorf("%d more of them fit, and one is refused: %t", n, f.isFull(largest))
	}
	f.add(&token{record: &brought(1, largest)[0]})
	if !f.isFull(largest) || f.isFull(bulk(&brokers.Message{Body: make([]byte, smallMessage)})) {
		t.Error("a second one is taken, or a small one is not")
	}
	for n := 0; f.fits(10) < 10; n++ {
		if f.weigh(nil); n == 0 && f.largest < largest {
			t.Fatal("an empty answer says how large messages are")
		}
		if f.weigh(brought(2, 0)); n == 100 {
			t.Fatalf("after %d answers with small messages %d fit", n, f.fits(10))
		}
		f.bytes = 0
	}
}

// Large answers are read one after the other, until they are closed; small ones
// beside them; and one that waits ends with its call.
func TestLargeAnswersAreReadAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &httpClient{turn: make(chan struct{}, 1), next: doer(func(r *http.Request) (*http.Response, error) {
			return &http.Response{Body: io.NopCloser(strings.NewReader(r.Header.Get("Body")))}, nil
		})}
		read := func(ctx context.Context, size int, want error) io.Closer {
			r := (&http.Request{Header: http.Header{"Body": {strings.Repeat("x", size)}}}).WithContext(ctx)
			resp, err := n.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			if all, err := io.ReadAll(resp.Body); !errors.Is(err, want) || (len(all) == size) != (want == nil) {
				t.Errorf("read %d of %d bytes, error %v, want %v", len(all), size, err, want)
			}
			return resp.Body
		}
		const large = 2 * largeAnswer
		first := read(t.Context(), large, nil)
		read(t.Context(), 1000, nil)
		gone := errors.New("the call is over")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, gone)
		defer cancel()
		late := read(ctx, large, gone)
		done := make(chan struct{})
		go func() {
			defer close(done)
			read(t.Context(), large, nil).Close()
		}()
		synctest.Wait()
		select {
		case <-done:
			t.Error("two large answers were read at once")
		default:
		}
		for _, body := range []io.Closer{late, first, first} {
			body.Close()
		}
		<-done
	})
}
