package sqlstore_test

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/idempotency/sqlstore"
)

// What a store does on a database is tested in lab/fakes, since a driver
// would become a requirement of every user's program.

func TestNewRefuses(t *testing.T) {
	db := new(sql.DB)
	tests := []struct {
		name    string
		db      *sql.DB
		dialect sqlstore.Dialect
		table   string
		want    []string
	}{
		{"nothing", nil, 0, "x y", []string{"database is nil", "0 is no dialect", `"x y"`}},
		{"injection", db, sqlstore.SQLite, "keys; drop table users", []string{"table name"}},
		{"two dots", db, sqlstore.SQLite, "a.b.c", []string{"table name"}},
		{"quotes", db, sqlstore.Postgres, `"Keys"`, []string{"table name"}},
		{"dialect", db, 9, "", []string{"9 is no dialect"}},
		{"good", db, sqlstore.Postgres, "shop.keys", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := sqlstore.New(tt.db, tt.dialect, tt.table)
			if (err != nil) != (tt.want != nil) {
				t.Fatalf("New = %v, want an error: %t", err, tt.want != nil)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error %q does not say %q", err, part)
				}
			}
		})
	}
}
