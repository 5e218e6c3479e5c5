// Package postgrestest gives tests a Postgres to run on: the one that
// REDRIVE_POSTGRES_URL names, or a server of their own where its programs are
// installed.
package postgrestest

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"sync"
	"testing"
)

// variable names a Postgres, such as postgres://user:password@127.0.0.1:5432/test.
const variable = "REDRIVE_POSTGRES_URL"

var shared struct {
	sync.Once
	url    string
	server *Server // nil if somebody else has started it
	err    error
}

// URL returns the address of a Postgres that all tests of the process share, so
// each makes a table or a schema of its own and drops it. Without one the test
// ends here: it is skipped, or fails where CI=true. The program has to import a
// driver called pgx, and to call Stop after its tests.
func URL(tb testing.TB) string {
	tb.Helper()
	shared.Do(func() {
		if shared.url = os.Getenv(variable); shared.url == "" {
			if shared.server, shared.err = Start("-F"); shared.err == nil { // without fsync
				shared.url = shared.server.URL
			}
		}
	})
	refuse(tb, shared.err)
	return shared.url
}

// New starts a server for one test, which may kill it. What it has acknowledged
// is on the disk.
func New(tb testing.TB) *Server {
	tb.Helper()
	s, err := Start()
	refuse(tb, err)
	tb.Cleanup(s.Stop)
	return s
}

func refuse(tb testing.TB, err error) {
	tb.Helper()
	switch {
	case err != nil && os.Getenv("CI") == "true":
		tb.Fatalf("no Postgres could be started: %v", err)
	case err != nil:
		tb.Skipf("%s is not set, and no Postgres could be started: %v", variable, err)
	}
}

// Stop stops the server that URL has started, if it has.
func Stop() {
	if shared.server != nil {
		shared.server.Stop()
	}
}

// Schema returns the address of a schema on a server whose address is given. It is
// dropped after the test.
func Schema(tb testing.TB, server string) string {
	tb.Helper()
	name := fmt.Sprintf("redrive_test_%x", rand.Uint64())
	tb.Cleanup(func() {
		db, err := sql.Open("pgx", server)
		if err != nil {
			tb.Error(err)
			return
		}
		defer db.Close()
		if _, err := db.Exec("drop schema if exists " + name + " cascade"); err != nil {
			tb.Error(err)
		}
	})
	u, err := url.Parse(server)
	if err != nil {
		tb.Fatal(err)
	}
	query := u.Query()
	query.Set("search_path", name)
	u.RawQuery = query.Encode()
	return u.String()
}
