package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/redrive-go/redrive/idempotency"
	"github.com/redrive-go/redrive/idempotency/sqlstore"
)

// Keys are in a table, and outlast the process. The program imports a driver.
func Example() {
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()

	store, err := sqlstore.New(db, sqlstore.Postgres, "")
	if err != nil {
		log.Fatal(err)
	}
	if err := store.CreateTable(context.Background()); err != nil {
		log.Fatal(err)
	}
	once, err := idempotency.Once(store, idempotency.Options{Retention: 7 * 24 * time.Hour, Redrive: -1})
	if err != nil {
		log.Fatal(err)
	}
	_ = once // for Config.Middleware
}

// The table may be made by migrations instead.
func ExampleStore_Schema() {
	var db sql.DB // what sql.Open returns
	store, err := sqlstore.New(&db, sqlstore.Postgres, "shop.handled")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(store.Schema())
	// Output:
	// create table if not exists shop.handled (
	// 	key text primary key,
	// 	token text not null,
	// 	fingerprint text not null,
	// 	done smallint not null, -- 0 while the handler runs, 1 after its success
	// 	ends bigint not null -- of the lease, or of the record: milliseconds since 1970
	// );
	// create index if not exists handled_ends on shop.handled (ends);
}
