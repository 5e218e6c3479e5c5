package redisbudget_test

import (
	"fmt"
	"log"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/retry/budget/redisbudget"
)

// Each worker of the fleet makes a Budget with the same Config, and counts and
// asks as with one of its own. A Consumer does that with the budget of its guard.
func Example() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", ReadTimeout: time.Second})
	defer client.Close()
	b, err := redisbudget.New(client, redisbudget.Config{
		Name:    "payments",
		Budget:  budget.Queue(), // 10 % and 1/s, for the whole fleet
		Workers: 20,
		OnError: func(err error) { log.Print(err) },
	})
	if err != nil {
		log.Fatal(err)
	}
	b.Deposit(time.Now(), 1)
	if wait, ok := b.Withdraw(time.Now(), 15*time.Minute, rand.Float64()); !ok {
		log.Print("ask again after ", wait)
	}
}

// Status is for metrics and health pages.
func ExampleBudget_Status() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379"})
	defer client.Close()
	b, _ := redisbudget.New(client, redisbudget.Config{Name: "payments", Budget: budget.Mesh(), Workers: 20})
	s := b.Status(time.Now())
	fmt.Println("in the fleet:", s.Fleet)
	fmt.Println("because:", s.Err)
	// Output:
	// in the fleet: false
	// because: the server has not answered yet
}

// All faults come at once, each with its fix.
func ExampleNew() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379"})
	defer client.Close()
	_, err := redisbudget.New(client, redisbudget.Config{Budget: budget.Config{Share: 10, Floor: 1}})
	fmt.Println(err)
	// Output:
	// budget: Config.Share: is 10: use a number above 0 and at most 1, such as 0.1 for 10 %
	// redisbudget: Config.Name: is empty: name the dependency that the workers share, such as "payments"
	// redisbudget: Config.Workers: is 0: say how many workers the fleet has at most, 1 to 10000
}
