package connect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/web"
	"github.com/redrive-go/redrive/operate/service"
	"github.com/redrive-go/redrive/operate/service/bodies"
	"github.com/redrive-go/redrive/operate/service/bodies/s3bodies"
)

// Bodies returns where the retry service keeps large bodies, apart from those of stores
// with another ID; nil if it keeps none. It connects to nothing. The error is a
// *config.Fault.
func Bodies(ctx context.Context, c *config.Config, id string) (bodies.Store, error) {
	bucket := c.Service.Bodies.S3
	if bucket == nil {
		if dir := c.BodyDirectory(); dir != "" {
			return bodies.Dir(filepath.Join(dir, id)), nil
		}
		return nil, nil
	}
	cfg, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithRegion(bucket.Region), awsconfig.WithSharedConfigProfile(bucket.Profile))
	if err != nil {
		return nil, c.Fault("service.bodies.s3", err)
	}
	client := s3.NewFromConfig(cfg, func(o *s3.Options) {
		if bucket.Endpoint != "" {
			o.BaseEndpoint, o.UsePathStyle = aws.String(bucket.Endpoint), true // names of buckets are no hosts elsewhere
		}
	})
	if bucket.Prefix != "" {
		id = bucket.Prefix + "/" + id
	}
	return &s3bodies.Bucket{Client: client, Name: bucket.Bucket, Prefix: id}, nil
}

// Tokens are those that callers of the retry service show, and the one that readers
// of its metrics do. The error is a *config.Fault.
func Tokens(c *config.Config) (list []service.Token, metrics string, err error) {
	for _, tenant := range slices.Sorted(maps.Keys(c.Service.Tokens)) {
		for i, s := range c.Service.Tokens[tenant] {
			secret, err := s.Read()
			if err != nil {
				return nil, "", err
			}
			for _, other := range list {
				if other.Secret == secret && other.Tenant != tenant {
					return nil, "", c.Fault(fmt.Sprintf("service.tokens.%s[%d]", tenant, i), fmt.Errorf("is the token of %s, too: use another", other.Tenant))
				}
			}
			list = append(list, service.Token{Tenant: tenant, Secret: secret})
		}
	}
	if c.Service.MetricsToken != nil {
		metrics, err = c.Service.MetricsToken.Read()
	}
	return list, metrics, err
}

// Quotas returns the quotas of the tenants of the retry service.
func Quotas(c *config.Config) service.Quotas {
	of := func(q config.Quota) service.Quota {
		return service.Quota{Tasks: int64(q.Tasks), Bytes: int64(q.Bytes), Policies: int64(q.Policies)}
	}
	all := service.Quotas{All: of(c.Service.Quota), Of: map[string]service.Quota{}}
	for tenant, q := range c.Service.Quotas {
		all.Of[tenant] = of(*q)
	}
	return all
}

// Guard is what the retry service may call. The error is a *config.Fault.
func Guard(c *config.Config) (*service.Guard, error) {
	var t service.Targets
	for _, entry := range c.Service.Allow {
		if _, err := netip.ParsePrefix(entry); err == nil {
			t.Networks = append(t.Networks, entry)
		} else {
			t.Hosts = append(t.Hosts, entry)
		}
	}
	g, err := service.NewGuard(t)
	if err != nil {
		return nil, c.Fault("service.allow", err)
	}
	return g, nil
}

// Web returns the options for the connections of a server, from the
// configuration at a key such as "serve". The error is a *config.Fault.
func Web(c *config.Config, key string, w *config.Web, log *slog.Logger) (o web.Options, err error) {
	o.Most, o.BehindProxy = w.Connections, w.BehindProxy
	if err := o.Check(); err != nil {
		return o, c.Fault(key+".connections", err)
	}
	if w.TLS == nil {
		return o, nil
	}
	o.Certificate, err = web.LoadCertificate(func() (cert, private []byte, err error) {
		if cert, err = w.TLS.Cert.Read(); err == nil {
			private, err = w.TLS.Key.Read()
		}
		return cert, private, err
	}, log)
	if _, ok := errors.AsType[*config.Fault](err); err != nil && !ok {
		err = c.Fault(key+".tls", err)
	}
	return o, err
}

// CheckServe does the part of [Check] for redrive serve.
func CheckServe(c *config.Config) error {
	_, err := Web(c, "serve", &c.Serve.Web, slog.New(slog.DiscardHandler))
	return err
}

// CheckService is [Check] for the retry service.
func CheckService(ctx context.Context, c *config.Config) error {
	_, _, noTokens := Tokens(c)
	_, noGuard := Guard(c)
	_, noBodies := Bodies(ctx, c, "")
	client, noSchedule := Schedule(c)
	if client != nil {
		noSchedule = client.Close()
	}
	_, noWeb := Web(c, "service", &c.Service.Web, slog.New(slog.DiscardHandler))
	return errors.Join(noTokens, noGuard, noBodies, noSchedule, noWeb)
}
