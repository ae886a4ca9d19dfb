module github.com/oncegate/oncegate/clients/go/amqp

go 1.23.0

require github.com/oncegate/oncegate/clients/go v0.1.0

require github.com/rabbitmq/amqp091-go v1.10.0
