package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/integration/redistest"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/connect"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/service"
	"github.com/redrive-go/redrive/operate/service/bodies"
)

// retrying starts redrive service in a folder of its own, on real time. It returns its
// address, and what ends it.
func retrying(t *testing.T, broker brokers.Broker, args ...string) (address string, stop func()) {
	t.Helper()
	t.Setenv(config.Variable, "")
	open := func(context.Context, *config.Config, string) (brokers.Broker, error) { return broker, nil }
	return inBackground(t, open, `listens at https?://(\S+)\. `, append([]string{"service"}, args...)...)
}

// curl does what the command does with these words.
func curl(t *testing.T, words []string) string {
	t.Helper()
	method, address, body, header := http.MethodGet, "", "", http.Header{}
	for i := 0; i < len(words); i++ {
		switch words[i] {
		case "curl", "-s":
		case "-X":
			i++
			method = words[i]
		case "-H":
			i++
			name, value, _ := strings.Cut(words[i], ": ")
			header.Set(name, value)
		case "-d":
			i++
			method, body = http.MethodPost, words[i]
		default:
			address = words[i]
		}
	}
	_, text := request(t, method, address, body, header)
	return text
}

const asJSON = "Content-Type: application/json"

// sendTask creates the policy standard and a task for a target, with some fields
// more. It returns what the service answers, and the task's address.
func sendTask(t *testing.T, address, target, more string, words ...string) (answer, task string) {
	t.Helper()
	words = append(words, "-H", asJSON)
	curl(t, append(words, "http://"+address+"/retry-policies", "-d", `{"policyId": "standard"}`))
	answer = curl(t, append(words, "http://"+address+"/retry-tasks", "-d",
		fmt.Sprintf(`{"policyId": "standard", "idempotencyKey": "k", "targetUrl": %q%s}`, target, more)))
	var doc struct{ TaskID string }
	if err := json.Unmarshal([]byte(answer), &doc); err != nil || doc.TaskID == "" {
		t.Fatalf("%v: %s", err, answer)
	}
	return answer, "http://" + address + "/retry-tasks/" + doc.TaskID
}

// await waits up to a minute until something is so, of which another process or the
// store would have to tell.
func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for begin := time.Now(); !so(); time.Sleep(20 * time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatal(what)
		}
	}
}

// down is what fails three times without an answer, is Python's server once it is
// mended, and takes POST once it is replaced.
func down(t *testing.T) (address string, mend, replace func()) {
	var calls atomic.Int64
	var replaced atomic.Bool
	mended := make(chan struct{})
	mend = sync.OnceFunc(func() { close(mended) })
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) <= 3 {
			if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
				_ = conn.Close()
			}
			return
		}
		<-mended
		switch {
		case replaced.Load():
			w.WriteHeader(http.StatusNoContent)
		case r.Method == http.MethodPost:
			w.WriteHeader(http.StatusNotImplemented)
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(mend)
	return strings.TrimPrefix(server.URL, "http://"), mend, func() { replaced.Store(true) }
}

const retryTutorial = "docs/tutorial/retry-service.md"

// drift is what each run has of its own, and what the page has instead.
type drift []struct {
	text *regexp.Regexp
	page string
}

func (d drift) uniform(text string) string {
	for _, o := range d {
		text = o.text.ReplaceAllString(text, o.page)
	}
	return text
}

var otherwise = drift{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}`), "01a2165e-d5eb-748f-9904-268053d52fb8"},
	{regexp.MustCompile(`(At":)\d{13}`), "${1}1795671643626"},
	{regexp.MustCompile(`("durationMs":)\d+`), "${1}1"},
	{regexp.MustCompile(`"errorMessage":"the connection broke"`), `"errorMessage":"the connection was refused"`},
}

// TestRetryTutorial types what the tutorial on the retry service does, and compares
// what comes with what the page shows.
func TestRetryTutorial(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits between attempts as long as the page")
	}
	page := readPage(t, retryTutorial)
	t.Chdir(t.TempDir())
	address, stop := retrying(t, nil, "--allow", "127.0.0.0/8", "--listen", "127.0.0.1:0")
	target, mend, replace := down(t)
	here := strings.NewReplacer("127.0.0.1:7430", address, "127.0.0.1:8000", target)
	task, typed := "", 0
	for _, shown := range regexp.MustCompile("(?m)^```\n\\$ ([^\n]+)\n((?s).*?)^```$").FindAllStringSubmatch(page, -1) {
		typed++
		line := here.Replace(strings.ReplaceAll(shown[1], "$TASK", task))
		if strings.HasSuffix(shown[1], "/redrive") {
			replace()
		}
		want, answer := otherwise.uniform(here.Replace(otherwise.uniform(shown[2]))), ""
		for begin := time.Now(); time.Since(begin) < time.Minute; time.Sleep(20 * time.Millisecond) {
			answer = curl(t, wordsOf(line))
			if otherwise.uniform(answer) == want || strings.Contains(line, " -d ") || strings.Contains(line, " -X ") {
				break // what changes nothing is typed until somebody would go on reading
			}
		}
		if got := otherwise.uniform(answer); got != want {
			t.Fatalf("%s\nshows\n%s\nwant\n%s", shown[1], got, want)
		}
		if strings.HasSuffix(shown[1], "/attempts") {
			mend()
		}
		var doc struct{ TaskID string }
		if json.Unmarshal([]byte(answer), &doc) == nil && doc.TaskID != "" {
			task = doc.TaskID
		}
	}
	if typed < 12 {
		t.Errorf("%s shows %d commands, want them all to be found", retryTutorial, typed)
	}
	stop()
}

// TestServiceLetters has a task go to a dead letter and back, by both ways that there
// are.
func TestServiceLetters(t *testing.T) {
	page := readPage(t, "docs/reference/retry-service.md")
	t.Chdir(t.TempDir())
	broker := memory.New(memory.Options{})
	text := `brokers: {shop: {kind: memory}}
service: {listen: "127.0.0.1:0", allow: ["127.0.0.0/8"], dead: {broker: shop, topic: dead}, tokens: {shop: [{env: SHOP_TOKEN}]}, metrics_token: {env: METRICS_TOKEN}}
`
	must(t, os.WriteFile(config.DefaultFile, []byte(text), 0o600))
	t.Setenv("SHOP_TOKEN", "the token of the shop")
	t.Setenv("METRICS_TOKEN", "the token of metrics")
	address, stop := retrying(t, lent{broker})
	var broken atomic.Bool
	broken.Store(true)
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if broken.Load() {
			w.WriteHeader(http.StatusUnprocessableEntity)
		}
	}))
	defer target.Close()
	token := []string{"-H", "Authorization: Bearer the token of the shop"}
	send := func(words ...string) string { return curl(t, append(words, token...)) }
	_, task := sendTask(t, address, target.URL, "", token...)
	read := func() dlq.Entry {
		letter, err := dlq.Decode(receive(t, broker, "dead"))
		if err != nil || !strings.HasSuffix(task, "/"+letter.Message.ID) || letter.Message.Topic != "retry-tasks" || letter.Meta.Attempt != 1 || letter.ErrorCode != "422" {
			t.Fatalf("letter %+v, error %v", letter, err)
		}
		return letter
	}
	sendBack := func(letter dlq.Entry) {
		must(t, broker.SendBack(t.Context(), "", "retry-tasks", brokers.Item{Message: &letter.Message, Meta: letter.Meta}))
	}
	first := read()
	if again := send("-X", "POST", task+"/redrive"); !strings.Contains(again, `"PENDING"`) {
		t.Fatal(again)
	}
	second := read()
	broken.Store(false)
	sendBack(second)
	await(t, "the task did not come back", func() bool { return strings.Contains(send(task), `"SUCCEEDED"`) })
	sendBack(first) // of a task that came back
	await(t, "the letter is not acknowledged", func() bool { return broker.Len("retry-tasks") == 0 })
	if log := send(task + "/attempts"); strings.Count(log, "startedAt") != 3 || broker.Len("dead") != 2 {
		t.Errorf("%d letters, and its log is %s", broker.Len("dead"), log)
	}
	serviceMetrics(t, "http://"+address, page)
	stop()
}

// grouped is a broker with consumer groups in memory: what is sent back reaches the
// group that it is sent to, if that receives.
type grouped struct {
	lent
	mu     *sync.Mutex
	groups map[string]string // by topic
}

func (g grouped) Open(ctx context.Context, sub brokers.Subscription) (brokers.Source, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, topic := range sub.Topics {
		g.groups[topic] = sub.Group
	}
	return g.lent.Open(ctx, sub)
}

func (g grouped) groupOf(topic string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.groups[topic]
}

func (g grouped) SendBack(ctx context.Context, group, topic string, msgs ...brokers.Item) error {
	if receives := g.groupOf(topic); receives == "" || receives != group {
		return fmt.Errorf("%q receives from %s: %w", receives, topic, brokers.ErrMisconfigured)
	}
	return g.lent.SendBack(ctx, group, topic, msgs...)
}

// TestServiceLettersOnKafka sends a letter back as the page on the service does.
func TestServiceLettersOnKafka(t *testing.T) {
	page := readPage(t, "docs/how-to/run-the-retry-service.md")
	send := regexp.MustCompile(`(?m)^redrive (dlq send --error 3 .*)$`).FindStringSubmatch(page)
	if send == nil {
		t.Fatal("the page sends nothing back")
	}
	t.Chdir(t.TempDir())
	broker := grouped{lent{memory.New(memory.Options{})}, &sync.Mutex{}, map[string]string{}}
	text := `brokers: {events: {kind: kafka, addresses: ["localhost:9092"]}}
topics: [{name: retry-tasks, broker: events, dead: [retry-tasks-dead], groups: [redrive-service], collect: true}]
store: {url: letters.db}
service: {listen: "127.0.0.1:0", allow: ["127.0.0.0/8"], dead: {broker: events, topic: retry-tasks-dead}}
`
	must(t, os.WriteFile(config.DefaultFile, []byte(text), 0o600))
	address, stop := retrying(t, broker)
	var calls atomic.Int64
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 1 {
			w.WriteHeader(http.StatusUnprocessableEntity)
		}
	}))
	defer target.Close()
	_, task := sendTask(t, address, target.URL, "")
	call := func(args ...string) {
		t.Helper()
		var said strings.Builder
		streams := term.Streams{In: strings.NewReader(""), Out: &said, Err: &said, Width: 80}
		open := func(context.Context, *config.Config, string) (brokers.Broker, error) { return broker, nil }
		if code := execute(t.Context(), newRootOn(streams, open, open), args, streams); code != exitOK {
			t.Fatalf("%q: exit code %d, %s", args, code, said.String())
		}
	}
	await(t, "there is no letter", func() bool { return broker.Len("retry-tasks-dead") == 1 })
	call("dlq", "collect", "retry-tasks")
	call(append(wordsOf(strings.Replace(send[1], "--error 3", "--error 1", 1)), "--yes", "--wait", "1s")...)
	await(t, "the task did not come back", func() bool { return strings.Contains(curl(t, []string{task}), `"SUCCEEDED"`) })
	if group := broker.groupOf("retry-tasks"); group != "redrive-service" {
		t.Errorf("the service receives with the group %q", group)
	}
	stop()
}

// TestServiceBodies gives a service that nobody has configured a body of the largest
// size.
func TestServiceBodies(t *testing.T) {
	t.Chdir(t.TempDir())
	address, stop := retrying(t, nil, "--allow", "127.0.0.0/8", "--listen", "127.0.0.1:0")
	arrived := make(chan int, 1)
	target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		arrived <- int(n)
	}))
	defer target.Close()
	body := strings.Repeat("a", 16<<20)
	if answer, _ := sendTask(t, address, target.URL, `, "body": "`+body+`"`); !strings.Contains(answer, `"bodyRef":"default/`) {
		t.Fatal(answer)
	}
	if n := <-arrived; n != len(body) {
		t.Errorf("%d bytes arrived, want %d", n, len(body))
	}
	stop()
	if files, err := os.ReadDir("service.db.bodies"); err != nil || len(files) != 1 {
		t.Errorf("the directory of bodies has %v, error %v", files, err)
	}
}

// TestServicesApart has two services in one directory and on one Redis, each with a
// store of its own: neither takes what is the other's, or deletes it.
func TestServicesApart(t *testing.T) {
	c, err := config.Parse("test", []byte(`service: {schedule: {redis: "`+redistest.New(t).Addr+`"}, bodies: {directory: "`+t.TempDir()+`"}}`))
	must(t, err)
	later := time.Now().Add(time.Hour)
	var refs []string
	var shelves []bodies.Store
	for _, id := range []string{"one", "two"} {
		shelf, err := connect.Bodies(t.Context(), c, id)
		must(t, err)
		ref, err := shelf.Put(t.Context(), "shop", strings.NewReader("a"))
		must(t, err)
		shelves, refs = append(shelves, shelf), append(refs, ref)
		schedule, err := openSchedule(c, id)
		must(t, err)
		defer schedule.Close()
		if due, _, err := schedule.Take(t.Context(), later, 10); len(due) > 0 || err != nil {
			t.Errorf("%s takes %v, error %v", id, due, err)
		}
		must(t, schedule.Add(t.Context(), service.Due{Row: 1, Tenant: "shop", At: time.Now()}))
	}
	n, err := shelves[0].Sweep(t.Context(), later, func(context.Context, []string) ([]string, error) { return nil, nil })
	if n != 1 || err != nil {
		t.Errorf("%d swept, error %v, want 1", n, err)
	}
	body, _, err := shelves[1].Open(t.Context(), refs[1])
	must(t, err)
	if err := body.Close(); err != nil {
		t.Error(err)
	}
}

// receive returns a message of a topic, which may not be there yet.
func receive(t *testing.T, broker *memory.Broker, topic string) brokers.Message {
	t.Helper()
	var source brokers.Source
	await(t, "there is no topic "+topic, func() (ok bool) {
		var err error
		source, err = broker.Open(t.Context(), brokers.Subscription{Topics: []string{topic}})
		return err == nil
	})
	deliveries, err := source.Receive(t.Context(), 1)
	if err != nil || len(deliveries) != 1 {
		t.Fatalf("%d messages, error %v", len(deliveries), err)
	}
	return deliveries[0].Message
}

// serviceMetrics demands of metrics that they have the token and are documented.
func serviceMetrics(t *testing.T, address, page string) {
	t.Helper()
	for _, token := range []string{"", "Bearer the token of the shop"} {
		if code, _ := get(t, address+"/metrics", http.Header{"Authorization": {token}}); code != http.StatusUnauthorized {
			t.Errorf("metrics with %q: %d", token, code)
		}
	}
	_, text := get(t, address+"/metrics", http.Header{"Authorization": {"Bearer the token of metrics"}})
	names := regexp.MustCompile(`(?m)^# TYPE (\w+) `).FindAllStringSubmatch(text, -1)
	for _, name := range names {
		if !strings.Contains(page, "| `"+name[1]+"` |") {
			t.Errorf("the reference has no metric %s", name[1])
		}
	}
	if len(names) < 5 {
		t.Errorf("metrics: %s", text)
	}
	if code, body := get(t, address+"/healthz", nil); code != http.StatusOK || body != "ok\n" {
		t.Errorf("healthz: %d %q", code, body)
	}
}

// TestServersRefuse says what the system, or a library, has to say.
func TestServersRefuse(t *testing.T) {
	inShop(t, func(s *shop) {
		s.configure("store: {url: letters.db}", "store: {url: letters.db}\nserve: {listen: \"127.0.0.1:99999\"}")
		s.refuses(exitFailure, "nothing was done: serve.listen of redrive.yaml cannot be used", "serve")
		must(s, os.WriteFile(config.DefaultFile, []byte(`service: {bodies: {s3: {bucket: retries, profile: nobody}}, schedule: {redis: "localhost:1", password: {env: NO_SUCH_PASSWORD}}}`), 0o600))
		s.refuses(exitFailure, "service.bodies.s3", "service")
		s.refuses(exitFailure, "NO_SUCH_PASSWORD", "service") // both are said at once
		if _, err := os.Stat("service.db"); !errors.Is(err, os.ErrNotExist) {
			s.Errorf("what is refused has made a store: %v", err)
		}
	})
}
