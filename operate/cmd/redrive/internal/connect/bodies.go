package connect

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/service/bodies"
	"github.com/redrive-go/redrive/operate/service/bodies/s3bodies"
)

// Bodies returns where the retry service keeps large bodies; nil if it keeps none. It
// connects to nothing. The error is a *config.Fault.
func Bodies(ctx context.Context, c *config.Config) (bodies.Store, error) {
	bucket := c.Service.Bodies.S3
	if bucket == nil {
		if dir := c.BodyDirectory(); dir != "" {
			return bodies.Dir(dir), nil
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
	return &s3bodies.Bucket{Client: client, Name: bucket.Bucket, Prefix: bucket.Prefix}, nil
}
