// Package rabbitmq runs redrive on RabbitMQ.
package rabbitmq
