package io.oncegate.spring;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.reflect.Type;

/** Results with Jackson 2. */
final class Jackson2Results implements ResultMapper {
    private final ObjectMapper mapper;

    Jackson2Results(ObjectMapper mapper) {
        this.mapper = mapper;
    }

    @Override
    public String write(Object result) {
        try {
            return mapper.writeValueAsString(result);
        } catch (JsonProcessingException notJson) {
            throw new IllegalArgumentException(notJson);
        }
    }

    @Override
    public Object read(String json, Type type) {
        try {
            return mapper.readValue(json, mapper.constructType(type));
        } catch (JsonProcessingException notOfThisType) {
            throw new IllegalArgumentException(notOfThisType);
        }
    }
}
