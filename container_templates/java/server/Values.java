package transship.server;

import java.lang.reflect.Array;
import java.lang.reflect.GenericArrayType;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.RecordComponent;
import java.lang.reflect.Type;
import java.lang.reflect.TypeVariable;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.time.DateTimeException;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.time.OffsetTime;
import java.time.Period;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.time.format.DateTimeFormatterBuilder;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.UUID;
import java.util.function.Function;
import java.util.function.Supplier;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.BaseVariableWidthVector;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.BitVector;
import org.apache.arrow.vector.DateDayVector;
import org.apache.arrow.vector.ExtensionTypeVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.FixedSizeBinaryVector;
import org.apache.arrow.vector.Float4Vector;
import org.apache.arrow.vector.Float8Vector;
import org.apache.arrow.vector.IntVector;
import org.apache.arrow.vector.IntervalMonthDayNanoVector;
import org.apache.arrow.vector.PeriodDuration;
import org.apache.arrow.vector.SmallIntVector;
import org.apache.arrow.vector.TimeMicroVector;
import org.apache.arrow.vector.TimeStampVector;
import org.apache.arrow.vector.VarBinaryVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.complex.StructVector;
import transship.Interval;

/**
 * The handler's values: the Java class that holds each type (README.md), to and from Arrow vectors, and to and from what
 * a handler's method declares. null is NULL.
 */
final class Values {
    private Values() {}

    /** PostgreSQL leaves zeros of the fraction and of the offset out. */
    private static final DateTimeFormatter TIMETZ = new DateTimeFormatterBuilder().append(DateTimeFormatter.ISO_LOCAL_TIME)
        .appendOffset("+HH:mm:ss", "+00").toFormatter();

    /** A value that does not fit; the message says what it is instead. */
    static final class Misfit extends RuntimeException {
        private static final long serialVersionUID = 1;

        Misfit(Object value) {
            super(describe(value));
        }

        private static String describe(Object value) {
            String text = value + (value == null ? "" : " of " + value.getClass().getSimpleName());
            return text.length() > 80 ? text.substring(0, 80) + "..." : text;
        }
    }

    // Vectors

    /** The value of a row. Misfit where Java cannot hold it. */
    static Object read(SqlType type, FieldVector vector, int row) {
        if (vector.isNull(row)) return null;
        if (vector instanceof ExtensionTypeVector<?> extension) return read(type, (FieldVector) extension.getUnderlyingVector(), row);
        switch (type.type()) {
            case "bool": return ((BitVector) vector).get(row) != 0;
            case "int2": return ((SmallIntVector) vector).get(row);
            case "int4": return ((IntVector) vector).get(row);
            case "int8": return ((BigIntVector) vector).get(row);
            case "float4": return ((Float4Vector) vector).get(row);
            case "float8": return ((Float8Vector) vector).get(row);
            case "bytea": return ((VarBinaryVector) vector).get(row);
            case "date": {
                int days = ((DateDayVector) vector).get(row);
                if (days == Integer.MAX_VALUE || days == Integer.MIN_VALUE) throw new Misfit("infinity");
                return LocalDate.ofEpochDay(days);
            }
            case "timestamp": return micros((TimeStampVector) vector, row).toLocalDateTime();
            case "timestamptz": return micros((TimeStampVector) vector, row);
            case "time": {
                long micros = ((TimeMicroVector) vector).get(row);
                if (micros >= 86_400_000_000L) throw new Misfit("24:00:00");
                return LocalTime.ofNanoOfDay(micros * 1000);
            }
            case "interval": {
                PeriodDuration value = ((IntervalMonthDayNanoVector) vector).getObject(row);
                return new Interval((int) value.getPeriod().toTotalMonths(), value.getPeriod().getDays(), value.getDuration().toNanos());
            }
            case "uuid": {
                ByteBuffer bytes = ByteBuffer.wrap(((FixedSizeBinaryVector) vector).get(row));
                return new UUID(bytes.getLong(), bytes.getLong());
            }
            case "array": {
                ListVector list = (ListVector) vector;
                List<Object> values = new ArrayList<>();
                for (int i = list.getElementStartIndex(row); i < list.getElementEndIndex(row); i++) {
                    values.add(read(type.element(), list.getDataVector(), i));
                }
                return values;
            }
            case "range":
            case "composite": {
                Map<String, Object> values = new LinkedHashMap<>();
                for (SqlType.Column part : type.parts()) {
                    values.put(part.name(), read(part.type(), ((StructVector) vector).getChild(part.name()), row));
                }
                return values;
            }
            default: return new String(((VarCharVector) vector).get(row), StandardCharsets.UTF_8);
        }
    }

    /** A vector of its own with some rows of another, or with one row repeated. */
    static FieldVector copy(FieldVector vector, int first, boolean isRepeated, int rows, BufferAllocator allocator) {
        FieldVector copied = vector.getField().createVector(allocator);
        try {
            copied.setInitialCapacity(rows);
            copied.allocateNew();
            for (int row = 0; row < rows; row++) copied.copyFromSafe(isRepeated ? first : first + row, row, vector);
            copied.setValueCount(rows);
            return copied;
        } catch (RuntimeException cause) {
            copied.close();
            throw cause;
        }
    }

    private static OffsetDateTime micros(TimeStampVector vector, int row) {
        long micros = vector.get(row);
        if (micros == Long.MAX_VALUE || micros == Long.MIN_VALUE) throw new Misfit("infinity");
        return Instant.EPOCH.plus(micros, ChronoUnit.MICROS).atOffset(ZoneOffset.UTC);
    }

    /** A result whose parts are of Java's own classes, too. Misfit as in write. */
    static Object settled(SqlType type, Object value) {
        Object plain = unwrap(type, value);
        if (plain == null) return null;
        switch (type.type()) {
            case "array": {
                List<Object> elements = new ArrayList<>();
                for (Object element : (Collection<?>) plain) elements.add(settled(type.element(), element));
                return elements;
            }
            case "range":
            case "composite": {
                Map<String, Object> parts = new LinkedHashMap<>();
                for (SqlType.Column part : type.parts()) parts.put(part.name(), settled(part.type(), ((Map<?, ?>) plain).get(part.name())));
                return parts;
            }
            default: return plain;
        }
    }

    /** Bytes of texts, byte strings and elements in the first rows of a vector that is being filled. */
    static long heldBytes(FieldVector vector, int rows) {
        FieldVector plain = Layout.plain(vector);
        if (plain instanceof BaseVariableWidthVector values) return offset(values.getOffsetBuffer(), rows);
        if (plain instanceof ListVector list) {
            int elements = offset(list.getOffsetBuffer(), rows);
            return 8L * elements + heldBytes(list.getDataVector(), elements);
        }
        long bytes = 0;
        if (plain instanceof StructVector struct) for (FieldVector part : struct.getChildrenFromFields()) bytes += heldBytes(part, rows);
        return bytes;
    }

    /** Where the values of a row begin. That of a row behind NULLs may not be known yet. */
    private static int offset(ArrowBuf offsets, int row) {
        long at = (long) row * Integer.BYTES;
        return at + Integer.BYTES <= offsets.capacity() ? offsets.getInt(at) : 0;
    }

    /** Sets a row to a result, of any class that holds the type. Misfit if it does not. */
    static void write(SqlType type, FieldVector vector, int row, Object value) {
        Object plain = unwrap(type, value);
        if (plain == null) {
            vector.setNull(row);
            return;
        }
        switch (type.type()) {
            case "bool" -> ((BitVector) vector).setSafe(row, (Boolean) plain ? 1 : 0);
            case "int2" -> ((SmallIntVector) vector).setSafe(row, (Short) plain);
            case "int4" -> ((IntVector) vector).setSafe(row, (Integer) plain);
            case "int8" -> ((BigIntVector) vector).setSafe(row, (Long) plain);
            case "float4" -> ((Float4Vector) vector).setSafe(row, (Float) plain);
            case "float8" -> ((Float8Vector) vector).setSafe(row, (Double) plain);
            case "bytea" -> ((VarBinaryVector) vector).setSafe(row, (byte[]) plain);
            case "date" -> ((DateDayVector) vector).setSafe(row, daysOf((LocalDate) plain));
            case "timestamp", "timestamptz" -> ((TimeStampVector) vector).setSafe(row, microsOf(plain));
            case "time" -> ((TimeMicroVector) vector).setSafe(row, ((LocalTime) plain).toNanoOfDay() / 1000);
            case "interval" -> {
                Interval interval = (Interval) plain;
                ((IntervalMonthDayNanoVector) vector).setSafe(row, interval.months(), interval.days(), interval.nanoseconds());
            }
            case "uuid" -> {
                UUID uuid = (UUID) plain;
                byte[] bytes = ByteBuffer.allocate(16).putLong(uuid.getMostSignificantBits()).putLong(uuid.getLeastSignificantBits()).array();
                ((FixedSizeBinaryVector) vector).setSafe(row, bytes);
            }
            case "array" -> {
                ListVector list = (ListVector) vector;
                int at = list.startNewValue(row);
                int count = 0;
                for (Object element : (Collection<?>) plain) {
                    FieldVector elements = list.getDataVector();
                    while (elements.getValueCapacity() <= at + count) elements.reAlloc();
                    write(type.element(), elements, at + count++, element);
                }
                list.endValue(row, count);
            }
            case "range", "composite" -> {
                StructVector struct = (StructVector) vector;
                while (struct.getValueCapacity() <= row) struct.reAlloc();
                for (SqlType.Column part : type.parts()) {
                    write(part.type(), struct.getChild(part.name()), row, ((Map<?, ?>) plain).get(part.name()));
                }
                struct.setIndexDefined(row);
            }
            default -> ((VarCharVector) vector).setSafe(row, utf8((String) plain));
        }
    }

    static byte[] utf8(String text) {
        try {
            ByteBuffer bytes = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(text));
            byte[] copy = new byte[bytes.remaining()];
            bytes.get(copy);
            return copy;
        } catch (CharacterCodingException cause) {
            throw new Misfit(text);
        }
    }

    /** The largest and the smallest number of days stand for infinite dates, which no LocalDate is. */
    private static int daysOf(LocalDate value) {
        long days = value.toEpochDay();
        if (days >= Integer.MAX_VALUE || days <= Integer.MIN_VALUE) throw new Misfit(value);
        return (int) days;
    }

    /** Infinite timestamps are like infinite dates. */
    private static long microsOf(Object value) {
        OffsetDateTime time = value instanceof LocalDateTime local ? local.atOffset(ZoneOffset.UTC) : (OffsetDateTime) value;
        if (time.getNano() % 1000 != 0) throw new Misfit(value);
        try {
            long micros = Math.addExact(Math.multiplyExact(time.toEpochSecond(), 1_000_000), time.getNano() / 1000);
            if (micros != Long.MAX_VALUE && micros != Long.MIN_VALUE) return micros;
        } catch (ArithmeticException cause) {
            // It is told below.
        }
        throw new Misfit(value);
    }

    /** The value of a class of Java's own as the class that stands for its type. Misfit if that has no room for it. */
    private static <V> V converted(Object value, Supplier<V> convert) {
        try {
            return convert.get();
        } catch (ArithmeticException | DateTimeException cause) {
            throw new Misfit(value);
        }
    }

    /** A result as the one class that stands for its type. Nothing is rounded. */
    static Object unwrap(SqlType type, Object value) {
        if (value == null) return null;
        switch (type.type()) {
            case "bool": if (value instanceof Boolean) return value; break;
            case "int2": return (short) integer(value, Short.MIN_VALUE, Short.MAX_VALUE);
            case "int4": return (int) integer(value, Integer.MIN_VALUE, Integer.MAX_VALUE);
            case "int8": return integer(value, Long.MIN_VALUE, Long.MAX_VALUE);
            case "float4":
                if (value instanceof Float) return value;
                break;
            case "float8":
                if (value instanceof Double || value instanceof Float) return ((Number) value).doubleValue();
                break;
            case "bytea": if (value instanceof byte[]) return value; break;
            case "date": if (value instanceof LocalDate) return value; break;
            case "timestamp": if (value instanceof LocalDateTime) return value; break;
            case "timestamptz":
                if (value instanceof OffsetDateTime) return value;
                if (value instanceof Instant instant) return converted(value, () -> instant.atOffset(ZoneOffset.UTC));
                break;
            case "time":
                if (value instanceof LocalTime time && time.getNano() % 1000 == 0) return value;
                break;
            case "interval":
                if (value instanceof Interval) return value;
                if (value instanceof Period period) return converted(value, () -> new Interval(Math.toIntExact(period.toTotalMonths()), period.getDays(), 0));
                if (value instanceof Duration duration) return converted(value, () -> new Interval(0, 0, duration.toNanos()));
                break;
            case "uuid": if (value instanceof UUID) return value; break;
            case "array":
                if (value instanceof Collection<?>) return value;
                if (value.getClass().isArray()) return boxed(value);
                break;
            case "range":
            case "composite":
                Object map = value instanceof Record row ? attributes(type, row) : value;
                if (map instanceof Map<?, ?> found && type.parts().stream().allMatch(part -> found.containsKey(part.name()))) return found;
                break;
            case "numeric":
                if (value instanceof BigDecimal decimal) return digits(decimal);
                if (value instanceof String) return value;
                break;
            case "timetz":
                if (value instanceof OffsetTime time) return TIMETZ.format(time);
                if (value instanceof String) return value;
                break;
            default: if (value instanceof String) return value;
        }
        throw new Misfit(value);
    }

    private static long integer(Object value, long min, long max) {
        boolean isInteger = value instanceof Long || value instanceof Integer || value instanceof Short || value instanceof Byte;
        if (!isInteger || ((Number) value).longValue() < min || ((Number) value).longValue() > max) throw new Misfit(value);
        return ((Number) value).longValue();
    }

    private static Map<String, Object> attributes(SqlType type, Record row) {
        Map<String, Object> values = new LinkedHashMap<>();
        for (RecordComponent component : row.getClass().getRecordComponents()) {
            for (SqlType.Column part : type.parts()) {
                if (!isSameName(part.name(), component.getName())) continue;
                try {
                    component.getAccessor().setAccessible(true);
                    values.put(part.name(), component.getAccessor().invoke(row));
                } catch (ReflectiveOperationException cause) {
                    throw new Misfit(row);
                }
            }
        }
        return values;
    }

    /** Names are the same without underscores and case: Java writes add_one as addOne, and a class as AddOne. */
    static boolean isSameName(String sql, String java) {
        return plain(sql).equals(plain(java));
    }

    private static String plain(String name) {
        return name.replace("_", "").toLowerCase(Locale.ROOT);
    }

    private static List<Object> boxed(Object array) {
        List<Object> values = new ArrayList<>();
        for (int i = 0; i < Array.getLength(array); i++) values.add(Array.get(array, i));
        return values;
    }

    // What methods declare

    /** How a value becomes what a parameter declares. */
    interface Conversion {
        Object convert(Object value);
    }

    /** The conversion of a type's values to a parameter's class. IllegalArgumentException if there is none. */
    static Conversion conversion(SqlType type, Type target) {
        return conversion(type, target, Map.of());
    }

    private static Conversion conversion(SqlType type, Type target, Map<String, Type> variables) {
        if (target instanceof TypeVariable<?> variable && variables.containsKey(variable.getName())) {
            return conversion(type, variables.get(variable.getName()), Map.of());
        }
        if (target == Object.class || target instanceof TypeVariable<?>) return value -> value;
        Class<?> raw = rawClass(target);
        if (raw == null) throw new IllegalArgumentException(target + " does not hold SQL type " + type.text());
        if (raw.isPrimitive()) {
            Conversion boxed = conversion(type, Array.get(Array.newInstance(raw, 1), 0).getClass());
            return value -> {
                if (value == null) throw new Misfit("NULL, which takes a class instead of " + raw);
                return boxed.convert(value);
            };
        }
        switch (type.type()) {
            case "array": {
                if (raw.isArray() && raw != byte[].class) {
                    Conversion element = conversion(type.element(), elementType(target), variables);
                    Class<?> component = raw.getComponentType();
                    return value -> value == null ? null : toArray((List<?>) value, component, element);
                }
                if (raw.isAssignableFrom(ArrayList.class)) {
                    Type parameter = target instanceof ParameterizedType generic ? generic.getActualTypeArguments()[0] : Object.class;
                    Conversion element = conversion(type.element(), parameter, variables);
                    return value -> {
                        if (value == null) return null;
                        List<Object> values = new ArrayList<>();
                        for (Object each : (List<?>) value) values.add(element.convert(each));
                        return values;
                    };
                }
                break;
            }
            case "range":
            case "composite":
                if (raw.isAssignableFrom(LinkedHashMap.class)) return value -> value;
                if (raw.isRecord()) return toRecord(type, target, raw);
                break;
            case "numeric":
                if (raw == BigDecimal.class) return ofText(BigDecimal::new);
                break;
            case "timetz":
                if (raw == OffsetTime.class) return ofText(text -> OffsetTime.parse(text, TIMETZ));
                break;
            case "timestamptz":
                if (raw == Instant.class) return value -> value == null ? null : ((OffsetDateTime) value).toInstant();
                break;
            default:
        }
        if (raw != classOf(type)) throw new IllegalArgumentException("Java class " + raw.getSimpleName() + " does not hold SQL type " + type.text());
        return value -> value;
    }

    private static String digits(BigDecimal decimal) {
        try {
            return Json.digits(decimal);
        } catch (ArithmeticException cause) {
            // A short exponent may stand for any number of digits.
            throw new Misfit(decimal);
        }
    }

    private static Conversion ofText(Function<String, Object> parse) {
        return value -> {
            try {
                return value == null ? null : parse.apply((String) value);
            } catch (NumberFormatException | DateTimeException cause) {
                throw new Misfit(value);
            }
        };
    }

    private static Class<?> classOf(SqlType type) {
        return switch (type.type()) {
            case "bool" -> Boolean.class;
            case "int2" -> Short.class;
            case "int4" -> Integer.class;
            case "int8" -> Long.class;
            case "float4" -> Float.class;
            case "float8" -> Double.class;
            case "bytea" -> byte[].class;
            case "date" -> LocalDate.class;
            case "timestamp" -> LocalDateTime.class;
            case "timestamptz" -> OffsetDateTime.class;
            case "time" -> LocalTime.class;
            case "interval" -> Interval.class;
            case "uuid" -> UUID.class;
            case "array" -> List.class;
            case "range", "composite" -> Map.class;
            default -> String.class;
        };
    }

    private static Conversion toRecord(SqlType type, Type target, Class<?> raw) {
        Map<String, Type> variables = new LinkedHashMap<>();
        if (target instanceof ParameterizedType generic) {
            for (int i = 0; i < raw.getTypeParameters().length; i++) {
                variables.put(raw.getTypeParameters()[i].getName(), generic.getActualTypeArguments()[i]);
            }
        }
        RecordComponent[] components = raw.getRecordComponents();
        String[] names = new String[components.length];
        Conversion[] conversions = new Conversion[components.length];
        Class<?>[] classes = new Class<?>[components.length];
        for (int i = 0; i < components.length; i++) {
            classes[i] = components[i].getType();
            for (SqlType.Column part : type.parts()) {
                if (!isSameName(part.name(), components[i].getName())) continue;
                names[i] = part.name();
                conversions[i] = conversion(part.type(), components[i].getGenericType(), variables);
            }
            if (names[i] == null || components.length != type.parts().size()) {
                throw new IllegalArgumentException("record " + raw.getSimpleName() + " does not have the attributes of " + type.text());
            }
        }
        try {
            var constructor = raw.getDeclaredConstructor(classes);
            constructor.setAccessible(true);
            return value -> {
                if (value == null) return null;
                Object[] parts = new Object[names.length];
                for (int i = 0; i < parts.length; i++) parts[i] = conversions[i].convert(((Map<?, ?>) value).get(names[i]));
                try {
                    return constructor.newInstance(parts);
                } catch (ReflectiveOperationException cause) {
                    throw new Misfit(value);
                }
            };
        } catch (NoSuchMethodException cause) {
            throw new IllegalArgumentException(cause);
        }
    }

    static Object toArray(List<?> values, Class<?> component, Conversion element) {
        Object array = Array.newInstance(component, values.size());
        for (int i = 0; i < values.size(); i++) Array.set(array, i, element.convert(values.get(i)));
        return array;
    }

    static Class<?> rawClass(Type type) {
        if (type instanceof Class<?> raw) return raw;
        if (type instanceof ParameterizedType generic) return (Class<?>) generic.getRawType();
        if (type instanceof GenericArrayType array) return Array.newInstance(rawClass(array.getGenericComponentType()), 0).getClass();
        return null;
    }

    static Type elementType(Type array) {
        return array instanceof GenericArrayType generic ? generic.getGenericComponentType() : rawClass(array).getComponentType();
    }
}
