package store_test

import (
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/integration/postgrestest"
	"github.com/redrive-go/redrive/operate/internal/storetest"
	"github.com/redrive-go/redrive/operate/store"
)

var must, fails, onBoth, raw = storetest.Must, storetest.Fails, storetest.OnBoth, storetest.Raw

// errOf returns the error of a call alone.
func errOf[T any](_ T, err error) error { return err }

// gives returns a function that fails the test unless a call returned this value.
func gives[T any](t testing.TB, want T) func(T, error) {
	return func(got T, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("error: %v", err)
		}
		same(t, "result", got, want)
	}
}

// same fails the test unless two values are equal.
func same[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %+v\nwant %+v", what, got, want)
	}
}

// noon is when the tests begin.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// onStores is onBoth for tests that need one open store.
func onStores(t *testing.T, test func(t *testing.T, s *store.Store)) {
	onBoth(t, func(t *testing.T, url string) { test(t, open(t, url)) })
}

func TestMain(m *testing.M) {
	if url := os.Getenv(victim); url != "" {
		beVictim(url)
	}
	code := m.Run()
	postgrestest.Stop()
	os.Exit(code)
}

func sqliteFile(t testing.TB) string { return filepath.Join(t.TempDir(), "letters.db") }

// sibling returns the URL of another store of the kind.
func sibling(t testing.TB, url string) string {
	if strings.HasPrefix(url, "postgres") {
		return postgrestest.Schema(t, postgrestest.URL(t))
	}
	return sqliteFile(t)
}

// open opens a store for the length of a test.
func open(t testing.TB, url string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), url)
	must(t, err)
	t.Cleanup(func() {
		must(t, s.Close())
	})
	return s
}

// entry is the n-th dead message of a test, dead n seconds after noon.
func entry(n int) dlq.Entry {
	return dlq.Entry{
		Message: brokers.Message{
			ID: fmt.Sprintf("message-%d", n), Topic: "orders", Key: fmt.Sprintf("customer-%d", n%7),
			Body: fmt.Appendf(nil, `{"order":%d}`, n), Headers: brokers.Headers{{Name: "tenant", Value: "acme"}}, PublishedAt: noon,
		},
		Meta:   brokers.Meta{Attempt: 8, Class: "transient", FirstFailedAt: noon, LastFailedAt: noon},
		Reason: "exhausted", ErrorType: "*net.OpError", ErrorText: "connection refused", Fingerprint: "f1", Rule: "net",
		Group: "billing", DeadAt: noon.Add(time.Duration(n) * time.Second), DeadBy: "worker-1",
	}
}

// collected is a dead letter of ours as it comes from the topic orders.dead.
func collected(e dlq.Entry) store.Collected {
	raw := e.Encode(math.MaxInt)
	raw.Topic = "orders.dead"
	e, _ = dlq.Decode(raw)
	return store.Collected{Broker: "rabbit", Source: "orders.dead", Format: "redrive", Raw: raw, Entry: e}
}

func collect(t testing.TB, s *store.Store, now time.Time, letters ...store.Collected) {
	t.Helper()
	gives(t, len(letters))(s.Collect(t.Context(), now, letters))
}

// list returns all letters that f selects, page by page, and calls functions between
// pages.
func list(t testing.TB, s *store.Store, f store.Filter, limit int, between ...func()) (letters []store.Letter) {
	t.Helper()
	for p := (store.Page{Limit: limit}); ; {
		page, err := s.Letters(t.Context(), f, p)
		must(t, err)
		letters = append(letters, page.Letters...)
		if p.After = page.Next; p.After == "" {
			return letters
		}
		for _, do := range between {
			do()
		}
	}
}

func idsOf(letters []store.Letter) (ids []int64) {
	for _, l := range letters {
		ids = append(ids, l.ID)
	}
	return ids
}

// TestKeywords opens a store on Postgres with keywords instead of a URL.
func TestKeywords(t *testing.T) {
	u, err := url.Parse(postgrestest.Schema(t, postgrestest.URL(t)))
	must(t, err)
	password, _ := u.User.Password()
	words := fmt.Sprintf("user='%s' dbname='%s' password='%s'", u.User.Username(), strings.TrimPrefix(u.Path, "/"), password)
	if u.Host != "" {
		words += fmt.Sprintf(" host='%s' port='%s'", u.Hostname(), u.Port())
	}
	for name := range u.Query() {
		words += fmt.Sprintf(" %s='%s'", name, u.Query().Get(name))
	}
	open(t, words)
	if _, err := os.Stat(words); err == nil {
		t.Error("the keywords were taken for the name of a file")
	}
}
