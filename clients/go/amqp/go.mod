module github.com/oncegate/oncegate-go/amqp

go 1.23.0

require github.com/oncegate/oncegate-go v0.0.0

require github.com/rabbitmq/amqp091-go v1.10.0

replace github.com/oncegate/oncegate-go => ../
