package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/classify"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/metrics"
	"github.com/redrive-go/redrive/operate/config"
)

const (
	orders   = 10_000
	refused  = 4_000 // in yen
	broken   = 3     // no orders at all
	noMoney  = 12    // declined
	declined = "tok_declined"
)

// message is the n-th order, from 1. The first three are one of each kind that dies.
func message(n int) brokers.Message {
	o := order{ID: fmt.Sprintf("ord-%05d", n), Customer: fmt.Sprintf("cus-%04d", n%997), Cents: int64(100 + n*37%20_000), Currency: "EUR", Card: "tok_visa"}
	m := brokers.Message{ID: o.ID, Key: o.Customer}
	switch {
	case n == 2 || n > 4 && n%900 == 4:
		o.Card = declined
	case n == 3 || n == 5_003 || n == 7_003:
		m.Body = []byte(`{"id":"` + o.ID + `","cents":"ten"`)
		return m
	case n%5 < 2:
		o.Currency = "JPY"
	}
	m.Body, _ = json.Marshal(o) // texts and numbers always can be
	return m
}

// newWorker returns a consumer that charges orders and sends mails: the worker of the
// shop, and has it watched. Orders have the default configuration but for the receipts.
func (d *demo) newWorker(broker brokers.Broker) (*consumer.Consumer, error) {
	guard, err := mailGuard()
	if err != nil {
		return nil, err
	}
	counted, err := metrics.New(metrics.Topic{Name: d.topic}, metrics.Topic{Name: d.mails, Dependency: mailServer})
	if err != nil {
		return nil, err
	}
	counted.Exemplar = d.traces.Exemplar
	log := slog.Handler(slog.NewTextHandler(d.log, nil))
	if d.traces.Log != nil {
		log = d.traces.Log(log)
	}
	worker, err := consumer.New(broker, consumer.Config{
		DeadLetter: "*-dead", Receipts: d.receipts, Logger: slog.New(log), Observers: []consumer.Observer{counted}, Tracer: d.traces.Tracer,
		Guard:  consumer.Guard{Off: true}, // or it would wait with 4,000 dead letters in a row
		Guards: map[string]consumer.Guard{mailServer: guard},
	})
	if err != nil {
		return nil, err
	}
	worker.Handle(d.topic, consumer.JSON(d.charge))
	worker.HandleWith(d.mails, consumer.JSON(d.send), mailTopic())
	counted.Follow(worker)
	d.watch, err = watch(d.Watch, worker, append(watchMails(guard), counted)...)
	return worker, err
}

func (d *demo) charge(ctx context.Context, o order) error {
	body, err := json.Marshal(o)
	if err != nil {
		return classify.Permanent(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.bank.url+"/charges", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Idempotency-Key", consumer.MetaFrom(ctx).IdempotencyKey)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	err = classify.FromResponse(resp)
	if resp.StatusCode == http.StatusPaymentRequired {
		err = classify.Permanent(err)
	}
	if err != nil {
		return fmt.Errorf("charge %s: %w", o.Currency, err)
	}
	return nil
}

// orders publishes all orders, waits until those that died are collected, and says
// what to try. The first three go one by one, so that the numbers of their letters
// and groups are always the same.
func (d *demo) orders(ctx context.Context, broker brokers.Broker) error {
	fmt.Fprintf(d.Out, "The worker charges %d orders, and the payment server refuses yen ...\n", orders)
	for n := 1; n <= 3; n++ {
		if err := d.publish(ctx, broker, d.topic, message(n)); err != nil {
			return err
		}
		if err := d.await(ctx, int64(n)); err != nil {
			return err
		}
	}
	for n := 4; n <= orders; {
		var batch []brokers.Message
		for ; n <= orders && len(batch) < 500; n++ {
			batch = append(batch, message(n))
		}
		if err := d.publish(ctx, broker, d.topic, batch...); err != nil {
			return err
		}
	}
	if err := d.await(ctx, refused+noMoney+broken); err != nil {
		return err
	}
	d.tell()
	if d.Ready != nil {
		d.Ready(d.bank.url)
	}
	return nil
}

// publish is patient: the worker may not have declared the queue yet.
func (d *demo) publish(ctx context.Context, broker brokers.Broker, topic string, msgs ...brokers.Message) (err error) {
	for range 100 {
		if err = broker.Publish(ctx, topic, msgs...); err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
}

// await waits until so many letters are in the store.
func (d *demo) await(ctx context.Context, letters int64) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		last, err := d.store.Last(ctx)
		if err != nil || last >= letters {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (d *demo) tell() {
	where := "on the broker in this process"
	if d.RabbitMQ != "" {
		where = "on RabbitMQ"
	}
	fmt.Fprintf(d.Out, `
%d of them are dead %s, and collected.
In another terminal, in this folder, try:

  export REDRIVE_CONFIG='%s'
  alias redrive="$PWD/bin/redrive"

  redrive dlq groups                          what failed
  redrive dlq show 1                          all that is known of a letter
  redrive dlq send 1                          send one back: it dies again
  redrive dlq send --error 1 --rate 500       send all back: stops after one
  %-42s  the bank mends its server
  redrive dlq jobs resume 2                   now they go through

The worker sends mails, too, and their server is out of order for 20 s of each
minute. Watch what the worker does about it:

%s
Ctrl-C ends it all. Each step is explained in
https://github.com/redrive-go/redrive/blob/main/docs/tutorial/first-redrive.md
`, refused+noMoney+broken, where, filepath.Join(d.Dir, config.DefaultFile), "curl -X POST "+d.bank.url+"/mend", d.places())
}

// places are where to look, in lines.
func (d *demo) places() string {
	places := [][2]string{
		{"curl -s " + d.watch.url + "/statusz", "what it does now: a pause, its probes, slots"},
		{"curl -i " + d.watch.url + "/livez", "probes: /readyz and /startupz, too"},
		{"curl -s " + d.watch.url + "/metrics", "metrics of the worker"},
		{"curl -s " + d.serving + "/metrics", "metrics of redrive serve"},
		{"tail -f '" + d.log.Name() + "'", "the log: one line a decision"},
	}
	if d.spans != nil {
		places = append(places, [2]string{"tail -f '" + d.spans.Name() + "'", "a line for each span that ended"})
	}
	var b strings.Builder
	for _, p := range places {
		fmt.Fprintf(&b, "  %-42s  %s\n", p[0], p[1])
	}
	return b.String()
}
