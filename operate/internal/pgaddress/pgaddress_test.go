package pgaddress

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// clean removes the variables of Postgres from the environment of the test.
func clean(t *testing.T) {
	for _, v := range os.Environ() {
		if name, value, _ := strings.Cut(v, "="); strings.HasPrefix(name, "PG") {
			t.Setenv(name, value) // restores it after the test
			if err := os.Unsetenv(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("PGDATABASE", "letters")
}

// TestAttackStoreInPlainText tests Plain with the settings that the driver
// reads.
func TestAttackStoreInPlainText(t *testing.T) {
	services := filepath.Join(t.TempDir(), "services")
	if err := os.WriteFile(services, []byte("[far]\nhost=db.example.com\nuser=redrive\n[secure]\nhost=db.example.com\nsslmode=verify-full\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		address, env string // one variable, such as PGHOST=db
		plain        string // hosts, with spaces between them
	}{
		{"postgres:///letters", "", ""},
		{"postgres://redrive@localhost/letters", "", ""},
		{"postgres://redrive@[::1]:5433/letters", "", ""},
		{"postgres:///letters?host=/run/postgresql", "", ""},
		{"postgres://db/letters", "", "db"},
		{"postgres://db/letters?sslmode=verify-full", "", ""},
		{"postgres://db/letters?sslmode=verify-ca", "", ""},
		{"postgres://db/letters?sslmode=require", "", ""},
		{"postgres://db/letters?ssl=true", "", ""},
		{"postgres://db/letters?sslmode=prefer", "", "db"},
		{"postgres://db/letters?sslmode=allow", "", "db"},
		{"postgres://db/letters?sslmode=disable", "", "db"},
		// Several values of a parameter: the last one counts.
		{"postgres://db/letters?sslmode=verify-full&sslmode=disable", "", "db"},
		{"postgres://db/letters?sslmode=disable&sslmode=verify-full", "", ""},
		{"postgres://localhost/letters?host=localhost&host=db.example.com", "", "db.example.com"},
		{"postgres://localhost/letters?host=db.example.com&host=localhost", "", ""},
		{"postgres://localhost/letters?ho%73t=db.example.com", "", "db.example.com"},
		{"postgres://localhost/letters?sslmode=verify-full&host=db&sslmod%65=disable", "", "db"},
		// Several hosts.
		{"postgres:///letters?host=/tmp,db.example.com", "", "db.example.com"},
		{"postgres://localhost,db/letters", "", "db"},
		{"postgres://localhost:5432,db:5433/letters", "", "db"},
		{"postgres://one%2Ctwo/letters", "", "one two"},
		{"postgres://one,two,one/letters?sslmode=prefer", "", "one two"},
		{"postgres://one,two/letters?sslmode=verify-full", "", ""},
		// Names that only look local.
		{"postgres://localhost.example.com/letters", "", "localhost.example.com"},
		{"postgres://127.0.0.1.example.com/letters", "", "127.0.0.1.example.com"},
		{"postgres://0.0.0.0/letters", "", "0.0.0.0"},
		// The environment and service files.
		{"postgres:///letters", "PGHOST=db", "db"},
		{"postgres://localhost/letters", "PGHOST=db", ""},
		{"postgres://db/letters", "PGSSLMODE=verify-full", ""},
		{"postgres://db/letters?sslmode=prefer", "PGSSLMODE=verify-full", "db"},
		{"postgres://db/letters?sslmode=verify-full", "PGSSLMODE=disable", ""},
		{"postgres:///letters?service=far&servicefile=" + services, "", "db.example.com"},
		{"postgres:///letters?service=secure&servicefile=" + services, "", ""},
		{"postgres:///letters?service=far&sslmode=verify-full&servicefile=" + services, "", ""},
		{"postgres:///letters?servicefile=" + services, "PGSERVICE=far", "db.example.com"},
		// Keywords.
		{"host=localhost dbname=letters", "", ""},
		{"host=db dbname=letters", "", "db"},
		{"host = 'db' dbname=letters sslmode=verify-full", "", ""},
		{"dbname=letters host=db sslmode=verify-full sslmode=disable", "", "db"},
		{"dbname=letters host=/tmp,db", "", "db"},
		{"dbname=letters", "PGHOST=db", "db"},
		{"service=far servicefile=" + services, "", "db.example.com"},
	} {
		t.Run(tt.address+" "+tt.env, func(t *testing.T) {
			clean(t)
			if name, value, ok := strings.Cut(tt.env, "="); ok {
				t.Setenv(name, value)
			}
			if !Is(tt.address) {
				t.Fatal("it is no address of Postgres")
			}
			database, hosts, err := Plain(tt.address)
			if err != nil || database != "letters" || !slices.Equal(hosts, strings.Fields(tt.plain)) {
				t.Errorf("database %q, plain to %q, error %v; want plain to %q", database, hosts, err, tt.plain)
			}
		})
	}
}

func TestFilesAreNoAddresses(t *testing.T) {
	for _, file := range []string{"letters.db", "/var/lib/letters=1.db", "sqlite:letters.db", "./my letters.db", "ghost=1.db", "mysql://host=1", ""} {
		if Is(file) {
			t.Errorf("%q is taken for an address of Postgres", file)
		}
	}
}

// TestFailureHasNoPassword puts passwords into addresses that cannot be read.
func TestFailureHasNoPassword(t *testing.T) {
	clean(t)
	for _, address := range []string{
		"postgres://u:hun%zzter2@db/letters",
		"postgres://u:hunter2/x@db:port/letters",
		"postgres://u:x@db:hunter2/letters",
		"postgres://u:hunter2@[db/letters",
		"postgres://db/letters?pass%77ord=hunter2&sslmode=often",
		"postgres://db/letters?connect_timeout=hunter2",
		"postgres://db/letters?hunter2",
		"host=db password='hunter2",
		"host=db password=hunter2 sslmode",
		"host=db password = hunter2 port=x",
		"host=db password=hunter2 service=none",
		"host=db password=hunter2 sslmode=verify-full sslrootcert=/does/not/exist",
		"host=db password=hunter2 sslmode=often",
		"host=db password=hunter2 sslmode=verify-full sslcert=/does/not/exist sslkey=/x",
	} {
		_, _, err := Plain(address)
		if err == nil || strings.Contains(err.Error(), "hun") || strings.Contains(err.Error(), "ter2") {
			t.Errorf("%s: error %v, want no password in it", address, err)
		}
	}
	_, _, err := Plain("postgres://db/letters?sslmode=verify-full&sslrootcert=/does/not/exist")
	if file, ok := errors.AsType[*fs.PathError](err); !ok || file.Path != "/does/not/exist" {
		t.Errorf("error %v, want the name of the file", err)
	}
}

func TestWithPassword(t *testing.T) {
	clean(t)
	for _, address := range []string{
		"postgres://redrive@db/letters", "postgres://db/letters?user=redrive", "postgres://redrive@one:1,two:2/letters?sslmode=disable", "host=db user=redrive",
	} {
		for _, password := range []string{"hunter2", "p@ss:w/rd", "a b+c", `it's \ "quoted"`, "100%&?#=é", " "} {
			c, err := pgconn.ParseConfig(WithPassword(address, password))
			if err != nil || c.Password != password || c.User != "redrive" {
				t.Errorf("%s with %q: %+v, error %v", address, password, c, err)
			}
		}
	}
}

func TestHasPassword(t *testing.T) {
	for address, want := range map[string]bool{
		"host=db password=x": true, "host=db PASSWORD = x": true, "password='x y' host=db": true, "host=db sslpassword=x": true, "host=db pwd=x": true,
		"host=db user=pass": false, "host=db passfile=/x": false, "letters.db": false, "my password=1.db": true,
	} {
		if got := HasPassword(address); got != want {
			t.Errorf("%q: %v, want %v", address, got, want)
		}
	}
}
