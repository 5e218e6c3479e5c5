// Package storetest has what the tests of the stores share.
package storetest

import (
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/integration/postgrestest"
)

// Must fails the test at once if there is an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Fails wants an error that is another, or that has a text in it.
func Fails(t testing.TB, err error, want any) {
	t.Helper()
	switch want := want.(type) {
	case error:
		if !errors.Is(err, want) {
			t.Errorf("error: got %v, want %v", err, want)
		}
	case string:
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error: got %v, want %q", err, want)
		}
	}
}

// OnBoth runs a test on an SQLite file and, where there is one, on Postgres.
func OnBoth(t *testing.T, test func(t *testing.T, url string)) {
	t.Run("sqlite", func(t *testing.T) { test(t, filepath.Join(t.TempDir(), "store.db")) })
	t.Run("postgres", func(t *testing.T) { test(t, postgrestest.Schema(t, postgrestest.URL(t))) })
}

// Raw opens the database of a store beside the store.
func Raw(t testing.TB, url string) *sql.DB {
	t.Helper()
	driver := "sqlite"
	if strings.HasPrefix(url, "postgres") {
		driver = "pgx"
	}
	db, err := sql.Open(driver, url)
	Must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}
