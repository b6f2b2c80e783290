package transship.server;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.arrow.vector.types.DateUnit;
import org.apache.arrow.vector.types.FloatingPointPrecision;
import org.apache.arrow.vector.types.IntervalUnit;
import org.apache.arrow.vector.types.TimeUnit;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;

/** A type of docs/types.md, as functions.json describes it. */
record SqlType(String type, String text, SqlType element, List<Column> attributes) {
    /** A named column, argument or attribute. */
    record Column(String name, SqlType type) {
        Field field() {
            return type.field(name);
        }
    }

    static final SqlType BOOL = new SqlType("bool", "bool", null, null);
    static final SqlType INT4 = new SqlType("int4", "int4", null, null);
    static final SqlType INT8 = new SqlType("int8", "int8", null, null);
    static final SqlType TEXT = new SqlType("text", "text", null, null);
    static final SqlType BYTEA = new SqlType("bytea", "bytea", null, null);

    private static final Map<String, String> EXTENSIONS = Map.of(
        "numeric", "arrowudf.decimal", "json", "arrowudf.json", "uuid", "arrow.uuid", "timetz", "transship.timetz",
        "inet", "transship.inet", "cidr", "transship.cidr", "macaddr", "transship.macaddr",
        "datetime2", "transship.datetime2", "range", "transship.range");

    static SqlType read(JsonNode node) {
        List<Column> attributes = null;
        if (node.has("attributes")) {
            attributes = new ArrayList<>();
            for (JsonNode attribute : node.get("attributes")) {
                attributes.add(new Column(attribute.get("name").asText(), read(attribute)));
            }
        }
        SqlType element = node.has("element") ? read(node.get("element")) : null;
        return new SqlType(node.get("type").asText(), node.get("text").asText(), element, attributes);
    }

    /** A type of a shared table's column, which has no composite types and no ranges. */
    static SqlType ofColumn(String text) {
        if (!text.endsWith("[]")) return new SqlType(text, text, null, null);
        return new SqlType("array", text, ofColumn(text.substring(0, text.length() - 2)), null);
    }

    /** The attributes of a composite type, and the parts of a range. */
    List<Column> parts() {
        if (!type.equals("range")) return attributes;
        return List.of(new Column("lower", element), new Column("upper", element), new Column("lower_inc", BOOL),
            new Column("upper_inc", BOOL), new Column("empty", BOOL));
    }

    /** Whether values travel as text. */
    boolean isText() {
        return arrow() instanceof ArrowType.Utf8;
    }

    /** Whether a value of this type cannot be changed in Java. */
    boolean isFixed() {
        return !type.equals("bytea") && element == null && attributes == null;
    }

    /** The bits of a value, for types whose values have a fixed width. */
    int bits() {
        return switch (type) {
            case "bool" -> 1;
            case "int2" -> 16;
            case "int4", "float4", "date" -> 32;
            case "int8", "float8", "timestamp", "timestamptz", "time" -> 64;
            case "interval", "uuid" -> 128;
            default -> throw new IllegalStateException(text + " has no fixed width");
        };
    }

    private ArrowType arrow() {
        return switch (type) {
            case "bool" -> ArrowType.Bool.INSTANCE;
            case "int2" -> new ArrowType.Int(16, true);
            case "int4" -> new ArrowType.Int(32, true);
            case "int8" -> new ArrowType.Int(64, true);
            case "float4" -> new ArrowType.FloatingPoint(FloatingPointPrecision.SINGLE);
            case "float8" -> new ArrowType.FloatingPoint(FloatingPointPrecision.DOUBLE);
            case "bytea" -> ArrowType.Binary.INSTANCE;
            case "date" -> new ArrowType.Date(DateUnit.DAY);
            case "timestamp" -> new ArrowType.Timestamp(TimeUnit.MICROSECOND, null);
            case "timestamptz" -> new ArrowType.Timestamp(TimeUnit.MICROSECOND, "UTC");
            case "time" -> new ArrowType.Time(TimeUnit.MICROSECOND, 64);
            case "interval" -> new ArrowType.Interval(IntervalUnit.MONTH_DAY_NANO);
            case "uuid" -> new ArrowType.FixedSizeBinary(16);
            case "array" -> ArrowType.List.INSTANCE;
            case "range", "composite" -> ArrowType.Struct.INSTANCE;
            default -> ArrowType.Utf8.INSTANCE;
        };
    }

    /** A nullable Arrow field of this type. */
    Field field(String name) {
        Map<String, String> metadata = null;
        if (EXTENSIONS.containsKey(type)) {
            metadata = Map.of(ArrowType.ExtensionType.EXTENSION_METADATA_KEY_NAME, EXTENSIONS.get(type));
        }
        List<Field> children = null;
        if (type.equals("array")) children = List.of(element.field("item"));
        else if (parts() != null) children = parts().stream().map(Column::field).toList();
        return new Field(name, new FieldType(true, arrow(), null, metadata), children);
    }

    /** Whether a field is of this type, whatever it is called and whether it takes NULL. */
    boolean accepts(Field found) {
        ArrowType foundType = found.getType();
        if (foundType instanceof ArrowType.ExtensionType extension) foundType = extension.storageType();
        if (!arrow().equals(foundType)) return false;
        List<Field> children = found.getChildren();
        if (type.equals("array")) return element.accepts(children.get(0));
        if (parts() == null) return true;
        if (children.size() != parts().size()) return false;
        for (int i = 0; i < children.size(); i++) {
            Column part = parts().get(i);
            if (!part.name().equals(children.get(i).getName()) || !part.type().accepts(children.get(i))) return false;
        }
        return true;
    }
}
