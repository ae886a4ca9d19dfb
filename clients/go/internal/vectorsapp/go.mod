module github.com/oncegate/oncegate/clients/go/internal/vectorsapp

go 1.25.0

require (
	github.com/gin-contrib/gzip v1.2.5
	github.com/gin-gonic/gin v1.12.0
	github.com/go-chi/chi/v5 v5.5.0
	github.com/klauspost/compress v1.20.4
	github.com/labstack/echo/v4 v4.16.0
	github.com/labstack/echo/v5 v5.4.4
	github.com/oncegate/oncegate/clients/go v0.1.0
	github.com/oncegate/oncegate/clients/go/echo v0.1.0
	github.com/oncegate/oncegate/clients/go/echo5 v0.1.0
	github.com/oncegate/oncegate/clients/go/gin v0.1.0
)
