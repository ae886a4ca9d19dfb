module github.com/oncegate/oncegate/clients/go/gin

go 1.25.0

require (
	github.com/gin-gonic/gin v1.12.0
	github.com/oncegate/oncegate/clients/go v0.1.0
)
