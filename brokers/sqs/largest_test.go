package sqs

import (
	"bytes"
	"crypto/md5"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/integration/livetest"
)

// stand stands for a body of the largest size: the server stores this, and a
// client gets that, so that the memory that a test looks at is the client's.
const stand = "the largest body"

// enlarged makes the bodies of answers to polls as they are read. All polls of a
// moment are answered at once, so that as much as can be is on its way.
type enlarged struct {
	next aws.HTTPClient
	body string
	read func() // called when an answer has nearly been read
}

func (e enlarged) Do(r *http.Request) (*http.Response, error) {
	resp, err := e.next.Do(r)
	if err != nil || !strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".ReceiveMessage") {
		return resp, err
	}
	<-time.After(10 * time.Millisecond)
	small, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	var parts []io.Reader
	for i, part := range bytes.Split(bytes.ReplaceAll(small, sumOf(stand), sumOf(e.body)), []byte(stand)) {
		if i > 0 {
			parts = append(parts, strings.NewReader(e.body))
			resp.ContentLength += int64(len(e.body) - len(stand))
		}
		parts = append(parts, bytes.NewReader(part))
	}
	last := len(parts) - 1
	if last == 0 {
		e.read = func() {}
	}
	resp.Body = io.NopCloser(io.MultiReader(append(parts[:last:last], once(e.read), parts[last])...))
	return resp, nil
}

// once is called when all before it has been read, and is empty.
type once func()

func (f once) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}

func sumOf(body string) []byte { return fmt.Appendf(nil, "%x", md5.Sum([]byte(body))) }

// heap is the most memory that was in use at any look, beyond that at the start.
type heap struct {
	mu           sync.Mutex
	before, most uint64
}

func (h *heap) look() {
	h.mu.Lock()
	defer h.mu.Unlock()
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	if h.before == 0 {
		h.before = stats.HeapAlloc
	}
	h.most = max(h.most, stats.HeapAlloc-min(h.before, stats.HeapAlloc))
}

// foreign sends n messages as somebody who is not redrive, in groups of their own.
func (s *scene) foreign(body string, n int) {
	s.Helper()
	url := s.server.Queue(s.topic).URL
	for sent := 0; sent < n; {
		in := &awssqs.SendMessageBatchInput{QueueUrl: &url}
		for ; len(in.Entries) < batchSize && sent < n; sent++ {
			e := types.SendMessageBatchRequestEntry{Id: aws.String(fmt.Sprint(sent)), MessageBody: &body}
			if isFIFO(s.topic) {
				e.MessageGroupId = aws.String(rand.Text())
				e.MessageDeduplicationId = e.MessageGroupId
			}
			in.Entries = append(in.Entries, e)
		}
		if out, err := s.broker.client.sends.SendMessageBatch(s.Context(), in); err != nil || len(out.Failed) > 0 {
			s.Fatalf("send: %v, %v", err, out)
		}
	}
}

// Ten thousand of the largest messages that SQS takes, behind small ones that have
// polls grow to their most, are with the worker a few at a time.
func TestAttackLargestMessages(t *testing.T) {
	const small, most = 2000, 96 << 20
	body := strings.Repeat("x", largest)
	for topic, large := range map[string]int{"jobs": 10_000, "jobs.fifo": 60} {
		if !livetest.IsNightly() {
			large = 60
		}
		playAs(t, topic, topic, Options{}, func(s *scene) {
			if _, err := s.broker.Open(s.Context(), s.sub); err != nil { // which makes the queue
				s.Fatal(err)
			}
			s.foreign("small", small)
			s.foreign(stand, large)
			var used heap
			used.look()
			config := s.server.Config()
			config.HTTPClient = enlarged{config.HTTPClient, body, used.look}
			b, err := New(Options{Config: config})
			if err != nil {
				s.Fatal(err)
			}
			s.started = append(s.started, b)
			s.sub.InFlight = 1000
			src := s.openOn(b)
			counts := make(map[int]int)
			for range small + large {
				d := s.one(src)
				if counts[len(d.Message.Body)]++; len(d.Message.Body) == largest {
					<-time.After(100 * time.Millisecond) // as its handler takes
				}
				s.settle(src, ack(d))
			}
			if counts[largest] != large || len(counts) != 2 {
				s.Errorf("messages by size: %v, want %d of %d bytes", counts, large, largest)
			}
			if used.most > most {
				s.Errorf("of %d messages of %d bytes, %d bytes were in use, want at most %d", large, largest, used.most, most)
			}
			if q := s.server.Queue(topic); q.Deleted != small+large {
				s.Errorf("%d messages were deleted, want %d", q.Deleted, small+large)
			}
		})
	}
}
