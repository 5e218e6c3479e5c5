package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/metrics"
	"github.com/redrive-go/redrive/retry"
	"github.com/redrive-go/redrive/retry/budget"
	"github.com/redrive-go/redrive/retry/flow"
)

// mailServer is the dependency of mails. It is out of order for 20 s of each minute.
const mailServer = "mail server"

// mailEvery is how long after a mail the next one is published.
const mailEvery = 100 * time.Millisecond

// mailGuard is the default one, made here so that metrics can show it.
func mailGuard() (consumer.Guard, error) {
	retries, err := budget.New(budget.Queue())
	return consumer.Guard{Limiter: flow.New(mailSlots, rand.Float64), Budget: retries}, err
}

const mailSlots = 4

// mailTopic is for a short day: the zero Policy waits for up to 15 min.
func mailTopic() consumer.TopicConfig {
	return consumer.TopicConfig{
		Dependency: mailServer, Concurrency: mailSlots,
		Retry: &retry.Policy{MaxAttempts: 10, Backoff: retry.Backoff{Base: 500 * time.Millisecond, Cap: 5 * time.Second}},
	}
}

// watchMails are the metrics of what mails depend on.
func watchMails(guard consumer.Guard) []metric {
	return []metric{metrics.NewLimiter(mailServer, guard.Limiter), metrics.NewBudget(mailServer, guard.Budget)}
}

// send is the handler of mails.
func (d *demo) send(ctx context.Context, m struct{ To string }) error {
	body, err := json.Marshal(m)
	if err != nil {
		return classify.Permanent(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.bank.url+"/mails", strings.NewReader(string(body)))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return classify.FromResponse(resp)
}

// publishMails has the shop send mails until ctx ends. The first is damaged, and its dead
// letter is one that nobody collects.
func (d *demo) publishMails(ctx context.Context, broker brokers.Broker) error {
	tick := time.NewTicker(mailEvery)
	defer tick.Stop()
	for n := 1; ; n++ {
		m := brokers.Message{ID: fmt.Sprintf("mail-%05d", n), Body: fmt.Appendf(nil, `{"to":"cus-%04d@example.com"}`, n%997)}
		if n == 1 {
			m.Body = m.Body[:10]
		}
		if d.traces.Parent != nil {
			m.Headers = append(m.Headers, brokers.Header{Name: "traceparent", Value: d.traces.Parent()})
		}
		if err := d.publish(ctx, broker, d.mails, m); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
