/** A service on Nest, as its authors write it. */

import { Controller, Module, Post } from "@nestjs/common";
import { Client, current } from "@oncegate/client";
import { Idempotent, OncegateModule } from "@oncegate/client/nest";

@Controller("orders")
class OrdersController {
  @Post()
  @Idempotent({ operation: "order.place", required: true })
  place(): { fence: number | null } {
    return { fence: current()?.fence ?? null };
  }
}

@Module({
  imports: [OncegateModule.forRoot({ client: new Client(), principal: (request) => request.user?.id })],
  controllers: [OrdersController],
})
export class AppModule {}
